// Package loop keeps count of what fails in the loops of a process, so that no loop fails in silence.
//
// Each loop (the leader's duties, the parts of a target's owner, the heartbeat, the listener, the pools) has an entry in
// the process's Monitor and reports each turn: Failed with the error, or Succeeded. A turn that may hang reports Began
// before it. The Monitor logs, feeds metrics, answers /readyz, and the Reporter writes to PostgreSQL what lasts, over
// connections that no other loop uses. From there it reaches reconciler.status and reconciler.doctor().
//
// Entries work on nil, so that a part can be tested without a Monitor.
package loop
