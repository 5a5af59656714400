// Package measure is what `reconciler bench` and `make bench` measure with: writers that commit as fast as they can
// (Commits), commits at a rate with the time until the driver is called (Changes, by way of a Sink) or until a bare
// notification arrives (Trips), and medians of several rounds (Spread).
//
// The tables that are written have the columns id, from 1 to Rows, and n.
package measure
