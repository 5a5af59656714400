//go:build !long

package pgtest

// Long reports whether the long tier runs (`make test/long`). In it, tests with a choice of cases run all of them.
const Long = false
