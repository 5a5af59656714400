#!/usr/bin/env bash
# Sets up what the demo needs (see scripts/setup.sh), and runs it: `make demo`. The demo leaves nothing behind; packages
# and images stay.
set -euo pipefail
cd "$(dirname "$0")/.."

image=$(./scripts/setup.sh demo)
printf 'demo: building bin/reconciler and the demo (the first time this takes a minute or two)\n' >&2
make --no-print-directory build >/dev/null
go build -trimpath -o bin/fleet-demo ./examples/fleet/demo
exec bin/fleet-demo -reconciler bin/reconciler ${image:+-image "$image"}
