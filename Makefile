# The verbs that people and CI share. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables

BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

# For `make test`: which packages, and what else go test shall know, such as TESTFLAGS='-v -run TestTick'.
PKG ?= ./...
TESTFLAGS ?=
# Every package keeps PostgreSQL and itself busy: more of them at once only disturb each other's timings.
# The tests inside one wait more than they work.
TEST_LOAD ?= -p=2 -parallel=4
BENCHFLAGS ?=
# PostgreSQL versions for `make images`.
PG_VERSIONS ?= 15 17 18

.PHONY: help
help: ## Say what each verb does
	@awk 'BEGIN { FS = ":.*## " } /^[a-z\/-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show everything on this machine in two minutes, set-up included
	./scripts/demo.sh

.PHONY: build
build: ## Build bin/reconciler
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/reconciler ./cmd/reconciler

.PHONY: test
test: ## Run unit, integration and end-to-end tests under the race detector
	go test -race -count=1 -timeout=30m $(TEST_LOAD) $(TESTFLAGS) $(PKG)

# For `make test/faults`: how many worlds, the seed of the first, how many side by side (a world mostly waits).
WORLDS ?= 20
SEED ?= 1
LANES ?= 4
FAULTFLAGS ?=

# Without the race detector, of which the tester alone would have something: it is busy enough. `make test` has it on.
.PHONY: test/faults
test/faults: ## Live through random worlds under faults: WORLDS=20 SEED=1 LANES=4
	go test -count=1 -timeout=24h -run 'TestWorlds' ./internal/faulttest -v -faults.worlds=$(WORLDS) -faults.seed=$(SEED) -faults.lanes=$(LANES) $(FAULTFLAGS)

# For `make test/mutants`: which of them (a regular expression), and more: -worlds=5, -write, -baseline=false.
MUTANTS ?= .
MUTANTS_FLAGS ?=

.PHONY: test/mutants
test/mutants: ## Take mechanisms out, one by one, and see the tests notice: MUTANTS=regexp
	go run ./scripts/mutants -run '$(MUTANTS)' $(MUTANTS_FLAGS)

# For `make test/fuzz`: how long each target runs, and how many inputs each keeps.
FUZZTIME ?= 10s
KEEP ?= 20

.PHONY: test/fuzz
test/fuzz: ## Run every fuzz target for a while, and keep what it learned: FUZZTIME=10s KEEP=20
	./scripts/fuzz.sh $(FUZZTIME) $(KEEP)

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run every linter that .golangci.yml does not switch off
	$(BIN)/golangci-lint run ./...
	$(BIN)/golangci-lint run --build-tags faults ./internal/crash/...

.PHONY: verify
verify: $(BIN)/sqlc ## Check that generated code, go.mod and formatting are as committed, and vet
	$(BIN)/sqlc diff
	@for file in internal/store/*.sql.go; do \
		test -e "db/queries/$$(basename "$$file" .go)" || { echo "$$file: its queries are gone, remove it" >&2; exit 1; }; \
	done
	go mod tidy -diff
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then printf 'not formatted, run gofmt -w on:\n%s\n' "$$unformatted" >&2; exit 1; fi
	go vet ./...

.PHONY: generate
generate: $(BIN)/sqlc ## Write the Go code for db/queries (internal/store)
	$(BIN)/sqlc generate

.PHONY: bench
bench: build ## Measure against limits and alternatives of the same run; writes bench/RESULTS.md
	./bench/run.sh -binary bin/reconciler -out bench $(BENCHFLAGS)

.PHONY: bench/peers
bench/peers: ## Measure against kine, River and others on the same work; writes bench/peers/peers.md and bench/RESULTS.md
	./bench/peers/run.sh -out . $(BENCHFLAGS)
	go run ./bench -render -out bench

.PHONY: images
images: ## Build PostgreSQL test images from Debian packages, for machines that cannot pull
	./scripts/build-images.sh $(PG_VERSIONS)

# Tools are built once, without cgo, and again only when tools/go.mod changes.
$(BIN)/sqlc $(BIN)/golangci-lint &: tools/go.mod
	mkdir -p $(BIN)
	cd tools && CGO_ENABLED=0 go build -trimpath -o ../$(BIN)/ tool
	touch $(BIN)/sqlc $(BIN)/golangci-lint
