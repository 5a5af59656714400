# The verbs that people and CI share. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables

BIN     := bin
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -s -w -X main.version=$(VERSION)

# For `make test` and its siblings: which packages, and what else go test shall know, such as TESTFLAGS='-v -run TestTick'.
PKG ?=
TESTFLAGS ?=
# All packages; those that take longest come first.
ALL := ./internal/server ./test/rows ./test/faults ./test/e2e ./cmd/reconciler ./internal/outbox ./internal/leader ./internal/apply ./...
# Without those that drive a built binary or link the libraries of Kubernetes: they take two minutes to compile for the race detector.
RACED = ./internal/server ./test/rows ./internal/outbox ./internal/leader ./internal/apply $$(go list ./... | grep -vE '/(cmd/reconciler|examples|test/(e2e|faults)|internal/driver/(drivers|kubernetes))(/|$$)')
# Sessions of PostgreSQL keep two processors busy: more tests side by side only time each other out. Alone, a package mostly waits.
# The tag pace divides the intervals of the product.
TEST_LOAD ?= -p=2 -parallel=$(if $(PKG),12,6)
# For `make test/quick`.
QUICK ?= $$(go list ./... | grep -vE '/(bench|test|outbox|leader|apply|server|lease|pgtest|devdb|crash|mutants|examples|cmd)(/|$$)')
BENCHFLAGS ?=
# PostgreSQL versions for `make images`.
PG_VERSIONS ?= 15 17 18

.PHONY: help
help: ## Say what each verb does
	@awk 'BEGIN { FS = ":.*## " } /^[a-z\/-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show everything on this machine in two minutes, set-up included
	./scripts/demo.sh

.PHONY: build
build: ## Build bin/reconciler
	go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/reconciler ./cmd/reconciler

.PHONY: test
test: ## Run unit, integration and end-to-end tests
	./scripts/test.sh -timeout=30m -tags=pace $(TEST_LOAD) $(TESTFLAGS) -- $(or $(PKG),$(ALL))

.PHONY: test/race
test/race: ## Run the same under the race detector, without what drives a built binary
	TEST_OUTPUT=bin/test/race ./scripts/test.sh -race -timeout=30m -tags=pace $(TEST_LOAD) $(TESTFLAGS) -- $(or $(PKG),$(RACED))

.PHONY: test/quick
test/quick: ## Run what takes seconds, and only for packages that changed
	go test -tags=pace -vet=off $(TEST_LOAD) $(TESTFLAGS) $(QUICK)

.PHONY: test/long
test/long: ## Run everything, with a million rows, floods and benches: an hour
	./scripts/test.sh -race -timeout=60m -tags=pace,long $(TEST_LOAD) $(TESTFLAGS) -- $(or $(PKG),./...)

.PHONY: test/kubernetes
test/kubernetes: ## Run the tests against a real Kubernetes API server, which the first run builds in ten minutes
	RECONCILER_TEST_KUBERNETES=$$(./scripts/kubernetes.sh) && export RECONCILER_TEST_KUBERNETES && \
	go test -race -timeout=10m -tags=kubernetes $(TEST_LOAD) $(TESTFLAGS) ./internal/driver/kubernetes/... ./examples/kubernetes

.PHONY: setup
setup: ## Install what the tests need: as root from Debian packages, otherwise it prints what is missing
	./scripts/setup.sh test $${RECONCILER_TEST_PG:-}

# For `make test/faults`: how many worlds, the seed of the first, how many side by side (a world mostly waits).
WORLDS ?= 20
SEED ?= 1
LANES ?= 4
FAULTFLAGS ?=

.PHONY: test/faults
test/faults: ## Live through random worlds under faults: WORLDS=20 SEED=1 LANES=4
	./scripts/setup.sh faults $${RECONCILER_TEST_PG:-}
	go test -count=1 -timeout=24h -run 'TestWorlds' ./test/faults -v -faults.worlds=$(WORLDS) -faults.seed=$(SEED) -faults.lanes=$(LANES) $(FAULTFLAGS)

# For `make test/mutants`: which of them (a regular expression), and more: -baseline=false.
MUTANTS ?= .
MUTANTS_FLAGS ?=

.PHONY: test/mutants
test/mutants: ## Take mechanisms out, one by one, and see the tests notice: MUTANTS=regexp
	go run ./scripts/mutants -run '$(MUTANTS)' $(MUTANTS_FLAGS)

# For `make test/fuzz`: how long each target runs.
FUZZTIME ?= 10s

.PHONY: test/fuzz
test/fuzz: ## Run every fuzz target for a while: FUZZTIME=10s
	./scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: $(BIN)/vet ## Run go vet, staticcheck, errcheck and nilness, and check formatting
	@unformatted=$$(gofmt -l .); \
	if [ -n "$$unformatted" ]; then printf 'not formatted, run gofmt -w on:\n%s\n' "$$unformatted" >&2; exit 1; fi
	go vet -vettool=$(BIN)/vet -tags=pace,long,kubernetes ./...
# Without cache, most of both is the compiler. With the default of 100, it collects garbage for a sixth of its time.
lint build: export GOGC ?= 400

.PHONY: lint/all
lint/all: $(BIN)/golangci-lint $(BIN)/sqlc ## Run every linter that .golangci.yml does not switch off, and sqlc diff
	$(BIN)/golangci-lint run --build-tags pace,long,kubernetes ./...
	$(BIN)/golangci-lint run --build-tags faults ./internal/crash/...
	cd internal/pgtest/testcontainer && ../../../$(BIN)/golangci-lint run
	$(BIN)/sqlc diff

# sqlc takes two minutes to build. So `make generate` notes what it read and wrote, and `make verify` compares that.
GENERATED_SUM := internal/store/generated.sum
generated_sum = { grep sqlc-dev/sqlc tools/go.mod; cat sqlc.yaml db/sqlc.sql db/queries/*.sql db/migrations/*.sql internal/store/*.go; } | git hash-object --stdin

.PHONY: verify
verify: ## Check that generated code and go.mod are as committed
	@[ "$$($(generated_sum))" = "$$(cat $(GENERATED_SUM))" ] || { echo 'internal/store does not match db/queries, db/migrations and sqlc.yaml: run make generate' >&2; exit 1; }
	go mod tidy -diff
	go -C internal/pgtest/testcontainer mod tidy -diff

.PHONY: generate
generate: $(BIN)/sqlc ## Write the Go code for db/queries (internal/store)
	rm -f internal/store/*.sql.go
	$(BIN)/sqlc generate
	$(generated_sum) >$(GENERATED_SUM)

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

# Tools are built once, and again only when tools/ changes.
$(BIN)/sqlc: TOOL := github.com/sqlc-dev/sqlc/cmd/sqlc
$(BIN)/golangci-lint: TOOL := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/gotestsum: TOOL := gotest.tools/gotestsum
$(BIN)/sqlc $(BIN)/golangci-lint $(BIN)/gotestsum: tools/go.mod
	cd tools && go build -o ../$@ $(TOOL)
	@touch $@
$(BIN)/vet: $(wildcard tools/vet/*)
	cd tools/vet && go build -o ../../$@ .
	@touch $@
