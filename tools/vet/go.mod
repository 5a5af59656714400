// The program behind `make lint`. A module of its own: from v0.50 on, unitchecker of golang.org/x/tools exports the types of
// each package with its facts, so that a package can no longer be skipped.
module github.com/pgreconciler/reconciler/tools/vet

go 1.26.0

require (
	github.com/kisielk/errcheck v1.20.0
	golang.org/x/tools v0.48.0
	honnef.co/go/tools v0.8.1
)

require (
	golang.org/x/exp/typeparams v0.0.0-20231108232855-2478ac86f678 // indirect
	golang.org/x/mod v0.38.0 // indirect
	golang.org/x/sync v0.22.0 // indirect
)
