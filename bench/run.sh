#!/usr/bin/env bash
# Measures on a throwaway PostgreSQL with fsync on, from the local server binaries, or on RECONCILER_BENCH_URL.
set -euo pipefail
cd "$(dirname "$0")/.."
program=./bench settings=
if [[ ${1:-} = peers ]]; then # for peers/run.sh
    shift
    cd bench/peers
    program=.
    settings='-c wal_level=logical -c max_connections=300'
fi

if [[ -n ${RECONCILER_BENCH_URL:-} ]]; then
    exec go run $program "$@"
fi
bindir=$(pg_config --bindir 2>/dev/null || true)
[[ -x $bindir/postgres ]] || {
    echo 'bench: no PostgreSQL server binaries: apt-get install postgresql, or set RECONCILER_BENCH_URL' >&2
    exit 1
}
as_postgres() { if [[ $EUID -eq 0 ]]; then runuser -u postgres -- "$@"; else "$@"; fi; }

dir=$(as_postgres mktemp -d /tmp/reconciler-bench.XXXXXX)
trap 'as_postgres "$bindir/pg_ctl" -D "$dir/data" -m immediate stop >/dev/null 2>&1 || true; rm -rf "$dir"' EXIT
as_postgres "$bindir/initdb" -D "$dir/data" -A trust -U postgres >/dev/null
port=$((20000 + RANDOM % 20000))
as_postgres "$bindir/pg_ctl" -D "$dir/data" -w -l "$dir/log" \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$dir $settings" start >/dev/null
go run $program -url "postgres://postgres@127.0.0.1:$port/postgres" "$@"
