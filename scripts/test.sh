#!/usr/bin/env bash
# Runs tests: `make test` and its siblings.
#
#   scripts/test.sh [FLAG of go test...] -- PACKAGE...
#
# It installs what is missing (scripts/setup.sh). Tests that fail run again, alone: those that pass then are listed under
# FLAKY and do not fail the run. scripts/testreport judges what happened and says so at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

flags=()
while [[ $1 != -- ]]; do
    flags+=("$1")
    shift
done
shift

./scripts/setup.sh test "${RECONCILER_TEST_PG:-}"
make --no-print-directory --silent bin/gotestsum
go build -o bin/testreport ./scripts/testreport
dir=${TEST_OUTPUT:-bin/test}
rm -rf "$dir"
mkdir -p "$dir"

# By default, each test binary with the race detector sleeps for a second before it exits.
export GORACE=${GORACE:-atexit_sleep_ms=100}
status=0
bin/gotestsum --format=pkgname --format-hide-empty-pkg --hide-summary=skipped \
    --rerun-fails=1 --rerun-fails-max-failures=8 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
    --jsonfile="$dir/events.json" --packages="$*" -- -vet=off -count=1 "${flags[@]}" || status=$?
bin/testreport -events "$dir/events.json" -flaky "$dir/flaky" -status "$status"
