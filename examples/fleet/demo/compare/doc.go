// Package compare says whether the targets of the fleet example have what its rows want. The demo's verdict comes from
// it, so it shares no code with what it judges: it reads the tables themselves and not the view that is tracked, puts
// every spec together in Go, encodes keys by itself, and compares JSON value by value. It imports no package of
// this module; a test sees to that.
package compare
