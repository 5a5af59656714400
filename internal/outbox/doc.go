// Package outbox reads the outbox: changes, in batches.
//
// A tick is a number, the revision, and the snapshot it was taken at; what became visible between two ticks is a batch. The
// leader makes them (internal/leader). Every process reads batches through one Feed, which reads a page once however
// many consumers stand at the same place. The Listener owns the LISTEN connection and wakes the rest.
//
// Nothing here knows what an object or a target's driver is. An event says only "look again".
package outbox
