#!/usr/bin/env bash
# Builds PostgreSQL images for the tests from Debian packages, for machines whose Docker cannot pull.
#
#   scripts/build-images.sh [VERSION...]      versions: 15 17 18 (default: all)
#   scripts/build-images.sh bare              instead: Debian with what README.md asks for (git, make), but for Go
#
# An image that exists is left as it is; remove it (docker rmi) to have it built again. Packages come from
# the Debian mirror that this machine's own apt uses; DEBIAN_MIRROR=URI names another one.
set -euo pipefail
cd "$(dirname "$0")"

repository=reconciler-test/postgres
bare=reconciler-test/bare:bookworm # scripts/bare_test.go runs it

say() { printf '%s\n' "$*" >&2; }
die() {
    say "build-images: $*"
    exit 1
}

# Which release of Debian carries which version.
release_of() {
    case $1 in
    15) echo bookworm ;;
    17) echo trixie ;;
    18) echo forky ;;
    *) die "no Debian release for PostgreSQL '$1' is known here: want 15, 17 or 18" ;;
    esac
}

# apt reads its sources in both formats, and knows from the lists which of them is Debian's archive proper.
mirror() {
    if [[ -n ${DEBIAN_MIRROR:-} ]]; then
        echo "$DEBIAN_MIRROR"
        return
    fi
    local found
    found=$(archive)
    if [[ -z $found && $EUID -eq 0 ]]; then
        apt-get update -qq >&2
        found=$(archive)
    fi
    [[ -n $found ]] || die 'apt knows no Debian mirror: run apt-get update as root, or set DEBIAN_MIRROR'
    echo "$found"
}

archive() {
    # Updates and security have a codename with a suffix; the archive proper has none.
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' \
        'Created-By: Packages' 'Origin: Debian' 'Label: Debian' 'Component: main' 2>/dev/null |
        awk '$2 !~ /-/ && !seen++ { print $1 }'
}

# A proxy that apt needs here is needed inside too.
proxies() {
    apt-config dump --format '%f "%v";%n' Acquire::http::Proxy Acquire::https::Proxy 2>/dev/null | grep -v '""' || true
}

# Writes a Debian system to $root: debian RELEASE OPTION...
debian() {
    local release=$1 uri proxy
    shift
    uri=$(mirror)
    local options=(
        --variant=minbase
        # A release in testing may be older than its expiry date on a mirror that is not refreshed often.
        --aptopt='Acquire::Check-Valid-Until "false"'
        --aptopt='APT::Install-Recommends "false"'
        --dpkgopt='path-exclude=/usr/share/doc/*'
        --dpkgopt='path-exclude=/usr/share/man/*'
        --dpkgopt='path-exclude=/usr/share/locale/*'
    )
    while IFS= read -r proxy; do
        [[ -z $proxy ]] || options+=(--aptopt="$proxy")
    done < <(proxies)

    # Not a pipe: docker must not import the half of an image that failed to build.
    mmdebstrap --quiet "${options[@]}" "$@" --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/*' \
        "$release" "$root" "$uri" >&2 || die "mmdebstrap could not make a system of Debian $release"
}

build_bare() {
    say "== $bare from Debian bookworm"
    debian bookworm --include=git,make,ca-certificates
    docker import "$root" "$bare" >/dev/null
}

build() {
    local version=$1 release bin=/usr/lib/postgresql/$1/bin data=/var/lib/postgresql
    release=$(release_of "$version")
    say "== $repository:$version from PostgreSQL $version of Debian $release"
    # The package would initialise a cluster of its own; ours is made when a container starts.
    debian "$release" --include="postgresql-$version" \
        --essential-hook='mkdir -p "$1/etc/postgresql-common" && echo "create_main_cluster = false" >"$1/etc/postgresql-common/createcluster.conf"' \
        --customize-hook="install -m 755 postgres-entrypoint.sh \"\$1/usr/local/bin/\""
    docker import \
        --change "ENV PATH=$bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        --change "ENV PGDATA=$data/data" \
        --change "ENV LANG=C.UTF-8" \
        --change "VOLUME $data" \
        --change 'EXPOSE 5432' \
        --change 'ENTRYPOINT ["/usr/local/bin/postgres-entrypoint.sh"]' \
        --change 'CMD ["postgres"]' \
        "$root" "$repository:$version" >/dev/null
    docker run --rm --entrypoint postgres "$repository:$version" --version >&2
}

main() {
    local versions=("$@") version
    ((${#versions[@]})) || versions=(15 17 18)
    for version in "${versions[@]}"; do
        [[ $version == bare ]] || release_of "$version" >/dev/null
    done
    command -v docker >/dev/null && docker version >/dev/null 2>&1 || die 'no Docker engine answers'
    command -v mmdebstrap >/dev/null || die 'mmdebstrap is missing: apt-get install mmdebstrap'
    root=$(mktemp --suffix=.tar)
    trap 'rm -f "$root"' EXIT
    for version in "${versions[@]}"; do
        if [[ $version == bare ]]; then
            docker image inspect "$bare" >/dev/null 2>&1 || build_bare
        elif docker image inspect "$repository:$version" >/dev/null 2>&1; then
            say "== $repository:$version exists"
        else
            build "$version"
        fi
    done
}

main "$@"
