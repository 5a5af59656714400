#!/bin/sh
# Entry point of the images that build-images.sh makes. It understands as much of the official image's
# contract as the tests use:
#   arguments                   postgres and its options, such as: postgres -c fsync=off
#   PGDATA                      data directory, made with initdb on the first start
#   POSTGRES_INITDB_ARGS        further options of initdb
#   POSTGRES_PASSWORD           password of the user postgres
#   POSTGRES_HOST_AUTH_METHOD   trust, or another method of pg_hba.conf; default: scram-sha-256
set -eu

if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA" /run/postgresql
    chown postgres:postgres "$PGDATA" /run/postgresql
    chmod 700 "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=${POSTGRES_PASSWORD:-}
    if [ -z "$password" ] && [ "$method" != trust ]; then
        echo 'Set POSTGRES_PASSWORD, or POSTGRES_HOST_AUTH_METHOD=trust.' >&2
        exit 2
    fi
    passwords=$(mktemp)
    printf '%s\n' "${password:-unused}" >"$passwords"
    # Word splitting is wanted: it is a list of options.
    # shellcheck disable=SC2086
    initdb --username=postgres --pwfile="$passwords" --no-sync ${POSTGRES_INITDB_ARGS:-}
    rm -f "$passwords"
    echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
    echo "host all all all $method" >>"$PGDATA/pg_hba.conf"
fi
exec "$@"
