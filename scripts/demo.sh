#!/usr/bin/env bash
# Sets up what the demo needs, and runs it: `make demo`.
#
# It needs Go and a PostgreSQL server. For that it takes, in this order: server binaries of this machine; a Docker image
# that is here, or can be pulled; and as root, on a machine with apt, Debian's package postgresql, which it installs after
# saying so. The demo itself leaves nothing behind; what was installed, or pulled, stays.
set -euo pipefail
cd "$(dirname "$0")/.."

# The oldest server that will do, and images that are looked for, newest first.
oldest=14
images=(postgres:18 postgres:17 postgres:16 postgres:15 postgres:14)
images+=(reconciler-test/postgres:18 reconciler-test/postgres:17 reconciler-test/postgres:15) # of make images
pull_image=postgres:17
pull_seconds=120
no_cluster=/etc/postgresql-common/createcluster.d/reconciler-demo.conf

say() { printf 'demo: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# The places where internal/devdb looks for them too.
server_binaries() {
    local dir version initdb
    initdb=$(command -v initdb || true)
    for dir in "$(pg_config --bindir 2>/dev/null || true)" "${initdb%/initdb}" \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        [[ -x $dir/initdb && -x $dir/postgres ]] || continue
        version=$("$dir/postgres" --version 2>/dev/null) || continue
        [[ $version =~ \(PostgreSQL\)\ ([0-9]+) ]] && ((BASH_REMATCH[1] >= oldest)) && return
    done
    return 1
}

docker_answers() { have docker && timeout 10 docker version >/dev/null 2>&1; }

present_image() {
    local image
    for image in "${images[@]}"; do
        if docker image inspect "$image" >/dev/null 2>&1; then
            echo "$image"
            return
        fi
    done
    return 1
}

pull() {
    say "there are no PostgreSQL server binaries here: pulling the Docker image $pull_image"
    timeout "$pull_seconds" docker pull --quiet "$pull_image" >/dev/null 2>&1 || {
        say "$pull_image could not be pulled within $pull_seconds s"
        return 1
    }
}

install_postgresql() {
    say "there are no PostgreSQL server binaries and no usable Docker image here: installing Debian's package postgresql"
    # The package would make and start a server of its own, which nobody here has asked for.
    trap 'rm -f "$no_cluster"' EXIT # of the subshell that provide_server runs in
    mkdir -p "${no_cluster%/*}"
    echo 'create_main_cluster = false' >"$no_cluster"
    export DEBIAN_FRONTEND=noninteractive
    local log
    log=$(mktemp)
    if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die 'installing it failed (see above); install PostgreSQL yourself, or start Docker with a PostgreSQL image'
    fi
    rm -f "$log"
}

# Prints the image to use, or nothing for local binaries.
provide_server() {
    server_binaries && return
    if docker_answers; then
        present_image && return
        if pull; then
            echo "$pull_image"
            return
        fi
    fi
    if [[ $EUID -eq 0 ]] && have apt-get; then
        install_postgresql
        server_binaries && return
        die "the package was installed, but there is no PostgreSQL $oldest or newer in /usr/lib/postgresql"
    fi
    die "found no way to run PostgreSQL $oldest or newer. Do one of these:
  sudo apt-get install postgresql       server binaries of your distribution
  docker pull $pull_image               with a Docker engine and a registry
  sudo make demo                        installs Debian's package by itself"
}

have go || die "Go is missing: install the version that go.mod names ($(awk '$1 == "go" { print $2 }' go.mod)), from https://go.dev/dl"
image=$(provide_server)
say 'building bin/reconciler and the demo (the first time this takes a minute or two)'
make --no-print-directory build >/dev/null
go build -trimpath -o bin/fleet-demo ./examples/fleet/demo
exec bin/fleet-demo -reconciler bin/reconciler ${image:+-image "$image"}
