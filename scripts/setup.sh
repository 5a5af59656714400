#!/usr/bin/env bash
# Installs what this machine lacks for the tests or the demo.
#
#   scripts/setup.sh test [VERSION]   a C compiler, pgbouncer, ps, and PostgreSQL VERSION (default: any version from 14)
#   scripts/setup.sh faults [VERSION] the same, and libfaketime, with which worlds set the server's clock
#   scripts/setup.sh demo             PostgreSQL, any version from 14
#
# It looks for PostgreSQL in this order: server binaries, a Docker image that is here, one that can be pulled, Debian
# packages. As root on a machine with apt it prints the packages and installs them; they stay. Otherwise it prints
# everything that is missing and the command that installs it, and fails. An installed PostgreSQL is brought up to the
# newest minor version that apt serves, because users get that one; where that fails, the installed one will do.
#
# On stdout it prints, for demo, the Docker image to use; nothing for server binaries.
set -euo pipefail
cd "$(dirname "$0")/.."

oldest=14
pull_seconds=120
update_seconds=60
ours=reconciler-test/postgres # of scripts/build-images.sh
no_cluster=/etc/postgresql-common/createcluster.d/reconciler-setup.conf

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
can_install() { [[ $(id -u) -eq 0 ]] && have apt-get; }
docker_answers() { have docker && timeout 10 docker version >/dev/null 2>&1; }

# Succeeds if there are binaries of the version, or of any from $oldest if it is empty. internal/pgserver
# looks in the same places.
binaries_exist() {
    local dir initdb
    initdb=$(command -v initdb || true)
    for dir in "$(pg_config --bindir 2>/dev/null || true)" "${initdb%/initdb}" \
        /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        [[ -x $dir/initdb && -x $dir/postgres ]] || continue
        [[ $("$dir/postgres" --version 2>/dev/null) =~ \(PostgreSQL\)\ ([0-9]+) ]] || continue
        if [[ ${1:-} ]]; then ((BASH_REMATCH[1] == $1)) && return; else ((BASH_REMATCH[1] >= oldest)) && return; fi
    done
    return 1
}

# Prints the first image of the versions that is here.
present_image() {
    local version image
    for version in "$@"; do
        for image in "postgres:$version" "$ours:$version"; do
            if docker image inspect "$image" >/dev/null 2>&1; then
                echo "$image"
                return
            fi
        done
    done
    return 1
}

pull() {
    say "pulling the Docker image $1"
    timeout "$pull_seconds" docker pull --quiet "$1" >/dev/null 2>&1 && echo "$1"
}

packages=() # Debian packages to install
missing=()  # what nothing here can provide

need() { # a description, then packages
    local what=$1
    shift
    if can_install; then packages+=("$@"); else missing+=("$what: apt-get install $*"); fi
}

candidate() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [^\(] ]]; }

update_lists() {
    [[ ${updated:-} ]] || apt-get update -qq >&2
    updated=yes
}

# Prints the installed packages of the version's server, or of every one if it is empty, that apt has in another version:
# name, installed, candidate.
outdated() {
    local installed
    have dpkg-query && have apt-cache || return 0
    installed=$(dpkg-query -W -f '${Package}\n' 'postgresql-*' 2>/dev/null | grep -Ex "postgresql-(client-)?${1:-[0-9]+}") || return 0
    # shellcheck disable=SC2086 # one name a line
    LC_ALL=C apt-cache policy $installed | awk '
        /^[^ ]/ { name = substr($1, 1, length($1) - 1) }
        $1 == "Installed:" { installed = $2 }
        $1 == "Candidate:" && installed != "(none)" && $2 != "(none)" && $2 != installed { print name, installed, $2 }'
}

# Installs the newest minor version of what is installed already. It never fails.
bring_up_to_date() {
    local name installed available newer=() log
    if can_install; then
        timeout "$update_seconds" apt-get -o APT::Update::Error-Mode=any update -qq >/dev/null 2>&1 ||
            say 'apt-get update failed: a newer minor version of PostgreSQL would not be noticed'
    fi
    while read -r name installed available; do
        say "$name $installed is installed, and apt has $available"
        newer+=("$name")
    done < <(outdated "$1")
    ((${#newer[@]})) || return 0
    if ! can_install; then
        say "to test what users get: apt-get install --only-upgrade ${newer[*]}"
        return
    fi
    say "upgrading Debian packages: ${newer[*]}"
    log=$(mktemp)
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --only-upgrade "${newer[@]}" >"$log" 2>&1 ||
        say "that failed, and the tests use what is installed: $(tail -n 1 "$log")"
    rm -f "$log"
}

build_image= # the version that only an image of ours can provide

# Finds a server, plans to install one, or notes that it is missing. Arguments: the version, empty for any, and the
# versions whose images will do. The first of them is pulled.
need_server() {
    local version=$1
    shift
    if binaries_exist "$version"; then
        bring_up_to_date "$version"
        return
    fi
    if docker_answers; then
        present_image "$@" || pull "postgres:$1" && return
        say 'that image could not be pulled'
    fi
    local package=postgresql${version:+-$version}
    if ! can_install; then
        missing+=("PostgreSQL ${version:-$oldest or newer}: apt-get install $package, or docker pull postgres:$1")
        return
    fi
    update_lists
    if candidate "$package"; then
        packages+=("$package")
    elif docker_answers; then
        have mmdebstrap || packages+=(mmdebstrap)
        build_image=$version
    else
        missing+=("PostgreSQL $version: there is no Debian package of it here, and no Docker engine")
    fi
}

# Installs everything in one go, or fails with one message.
install() {
    if ((${#missing[@]})); then
        die "this machine lacks:$(printf '\n  %s' "${missing[@]}")
Install it and run the command again, or run it as root on a machine with apt: it then installs Debian packages by itself."
    fi
    if ((${#packages[@]})); then
        say "installing Debian packages: ${packages[*]}"
        update_lists
        # The server's package would create and start a cluster, which nothing here uses.
        trap 'rm -f "$no_cluster"' EXIT
        mkdir -p "${no_cluster%/*}"
        echo 'create_main_cluster = false' >"$no_cluster"
        local log
        log=$(mktemp)
        if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >"$log" 2>&1; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            die "apt-get failed, see above"
        fi
        rm -f "$log"
    fi
    # A mirror that is being refreshed breaks a build in the middle; the second try finds it whole.
    [[ -z $build_image ]] || ./scripts/build-images.sh "$build_image" || ./scripts/build-images.sh "$build_image"
}

go_is_here() {
    have go || die "Go is missing: install $(awk '$1 == "go" { print $2 }' go.mod) or newer from https://go.dev/dl"
}

compiler_works() { echo 'int main(void) { return 0; }' | "$(go env CC)" -x c -o /dev/null - 2>/dev/null; }

# internal/pgtest looks in the same places.
faketime_exists() { compgen -G '/usr/lib*/faketime/libfaketime.so.1' || compgen -G '/usr/l*/*/faketime/libfaketime.so.1'; } >/dev/null

set_up_faults() {
    faketime_exists || need libfaketime libfaketime
    set_up_test "$@"
}

set_up_test() {
    go_is_here
    [[ ${1:-$oldest} =~ ^[1-9][0-9]*$ && ${1:-$oldest} -ge $oldest ]] ||
        die "RECONCILER_TEST_PG=$1: want a major version of PostgreSQL from $oldest on, such as 15"
    # For the race detector. Without it, `go test -race` alone fails.
    compiler_works || ! can_install || packages+=(gcc libc6-dev)
    have pgbouncer || [[ -x /usr/sbin/pgbouncer ]] || need PgBouncer pgbouncer
    have ps || need ps procps
    need_server "${1:-}" "${1:-15}" >/dev/null # without a version the tests use images of 15
    install
}

set_up_demo() {
    go_is_here
    local image
    image=$(mktemp)
    need_server "" 17 18 16 15 14 >"$image"
    install
    cat "$image"
    rm -f "$image"
}

case ${1:-} in
test) set_up_test "${2:-}" ;;
faults) set_up_faults "${2:-}" ;;
demo) set_up_demo ;;
*) die 'usage: scripts/setup.sh test [VERSION] | faults [VERSION] | demo' ;;
esac
