#!/usr/bin/env bash
# As ../run.sh. A server at RECONCILER_BENCH_URL must have wal_level=logical and max_connections of at least 200.
cd "$(dirname "$0")"
exec ../run.sh peers "$@"
