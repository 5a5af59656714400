// Package loop keeps count of what fails in the loops of a process, so that no loop fails in silence.
//
// Each loop (the leader's duties, the parts of a target's owner, the heartbeat, the listener, the pools) has an entry in
// the process's Monitor and reports each turn: Failed with the error, or Succeeded. A turn that may hang reports Began
// before it. Loop.Run does so for loops that take turns. The Monitor logs, feeds metrics and answers /readyz; heartbeats carry
// what lasts to PostgreSQL, where reconciler.status and reconciler.doctor() show it.
//
// Entries work on nil, so that a part can be tested without a Monitor.
package loop
