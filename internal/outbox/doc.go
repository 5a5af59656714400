// Package outbox turns committed rows of the outbox into revisions and hands them to whoever consumes them.
//
// One leader per database makes revisions (Ticker): a tick is a number and the snapshot it was taken at; what became
// visible between two ticks is a batch. Every process reads batches through one Feed, which reads a page once however
// many consumers stand at the same place. The Listener owns the LISTEN connection and wakes the rest.
//
// Nothing here knows what an object or a target's driver is. An event says only "look again".
package outbox
