#!/usr/bin/env bash
# Runs every fuzz target for a while, one after the other, and keeps what it learned: fuzz.sh DURATION MOST [PACKAGE...]
# Of the inputs that reached new code the MOST shortest of each target go to testdata/fuzz of its package, beside those that
# are there; `go test` runs them from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

time=$1 most=$2
shift 2
cache=$(go env GOCACHE)/fuzz
mapfile -t dirs < <(grep -rlE '^func Fuzz' --include='*_test.go' "${@:-.}" | xargs -n1 dirname | sort -u)
for dir in "${dirs[@]}"; do
    package=$(go list "./$dir")
    mapfile -t targets < <(go test -list '^Fuzz' "./$dir" | grep '^Fuzz')
    for target in "${targets[@]}"; do
        echo "$package $target"
        go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./$dir"
        learned=$cache/$package/$target kept=$dir/testdata/fuzz/$target
        [[ -d $learned ]] || continue
        mkdir -p "$kept"
        while read -r _ file; do
            (($(find "$kept" -type f | wc -l) < most)) || break
            cp -n "$file" "$kept/"
        done < <(find "$learned" -type f -printf '%s %p\n' | sort -n)
    done
done
