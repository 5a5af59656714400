#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other: fuzz.sh DURATION
# Go keeps the inputs that reach new code in its cache and goes on from them the next time. An input that fails goes to
# testdata/fuzz of its package, where `go test` runs it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t dirs < <(grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u)
for dir in "${dirs[@]}"; do
    for target in $(go test -list '^Fuzz' "$dir" | grep '^Fuzz'); do
        echo "$dir $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$1" "$dir"
    done
done
