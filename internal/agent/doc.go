// Package agent is what `reconciler agent` runs: it makes targets real that only it can reach, with any driver, from streams instead of
// from PostgreSQL. Package client follows a stream and decides what to look at; a driver makes the calls; this package connects the two
// and adds what an owner in the daemon has: limits, a circuit breaker, syncs, reports, metrics and probes.
//
// It imports neither internal/store nor internal/database, also not by way of others: it works without a database.
package agent
