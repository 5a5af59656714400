#!/usr/bin/env bash
# Builds what the tests against a real Kubernetes API server need, and prints the folder that has it: kube-apiserver and
# kube-controller-manager from the versions in test/kubernetes/go.mod, and etcd from PATH or a Debian package.
#
# The first build takes about ten minutes on two processors. Later calls find the binaries.
set -euo pipefail
cd "$(dirname "$0")/.."

module=test/kubernetes

say() { printf 'kubernetes: %s\n' "$*" >&2; }
die() {
    say "$*"
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

have go || die "go is missing: install Go, see https://go.dev/dl"
dir=bin/kubernetes/$(git hash-object "$module/go.sum" | head -c 12)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

# A build that is cut off leaves no binary under its final name.
build() {
    local binary=$dir/$1 version
    [[ -x $binary ]] && return
    version=$(cd "$module" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    say "building $1 $version"
    (cd "$module" && CGO_ENABLED=0 go build -trimpath \
        -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$binary.part" "k8s.io/kubernetes/cmd/$1") ||
        die "$1 did not build"
    mv "$binary.part" "$binary"
}

# The package is only unpacked: installing it would start a service.
provide_etcd() {
    local temp
    [[ -x $dir/etcd ]] && return
    if have etcd; then
        ln -sf "$(command -v etcd)" "$dir/etcd"
        return
    fi
    have apt-get && have dpkg-deb || die "etcd is missing: put an etcd of version 3.4 or later in PATH"
    say "unpacking etcd from the Debian package etcd-server"
    temp=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$temp'" EXIT
    (cd "$temp" && { apt-get download etcd-server || { apt-get update && apt-get download etcd-server; }; }) >&2 ||
        die "apt-get cannot download etcd-server: put an etcd of version 3.4 or later in PATH"
    dpkg-deb -x "$temp"/etcd-server_*.deb "$temp"
    cp "$temp/usr/bin/etcd" "$dir/etcd.part"
    mv "$dir/etcd.part" "$dir/etcd"
}

provide_etcd
build kube-apiserver
build kube-controller-manager
echo "$dir"
