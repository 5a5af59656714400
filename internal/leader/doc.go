// Package leader does what one process does for the whole database, the one that holds the leadership (internal/lease).
//
// The Ticker makes revisions: it looks at the outbox when a trigger's NOTIFY wakes it, or by polling where writers are many
// or LISTEN does not work, and hands the first page of each batch to the Feed of its process. The Steward has duties that know
// nothing of each other:
//
//	expand      changes of base tables -> the objects of joined resources that they concern (a consumer with a cursor)
//	open        applies that were committed -> operations and tasks
//	register    targets that rows name and no config has
//	retain      empties parts of the outbox that every consumer has read
//	forget      rows of the ledger whose resource is gone
//	mend        triggers and views that are not as they should be
//	uncaptured  resources whose triggers may not write the outbox
//	misfits     rows that can be no object
//	count       metrics of applies
package leader
