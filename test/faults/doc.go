// Package faults tries to break the command reconciler. Worlds made from seeds run real processes on a real PostgreSQL
// against targets that keep a journal of every call, while writers change rows and faults strike: processes are killed,
// frozen and restarted, the database crashes, connections are cut, delayed and half-opened, targets fail in every way.
//
// When the faults have ended everything must come to rest, and functions that know nothing of the product's code look at
// what happened: the targets must equal the rows, and the journal must not show a call that breaks an invariant. A
// world that fails prints its seed, its schedule, and what the journal and the logs say.
//
// docs/testing.md says how to run it and how to replay a seed. Nothing imports this package.
package faults
