// Package apply brings the objects of one target to what their rows ask for.
//
// An Owner runs while this process owns the target. Its parts, in the way of a change:
//
//	reader      outbox batches -> queue; holds the cursor until every object of a page is recorded
//	rollout     objects whose turn in an apply has come -> queue
//	retrier     objects in the ledger whose next attempt has come -> queue
//	(a sync)    -> queue, on the sync lane, through Owner.Enqueue
//	queue       each object once, two lanes with a share for each; bounded, so a full queue stops the reading
//	(rest)      objects of applies that are not open: in no lane and not in flight; then -> queue
//	dispatcher  reads rows and ledger in batches and decides: nothing, apply, delete, hold, block
//	caller      driver calls, one at a time for each object
//	settler     results and cursor -> ledger, in batches, refused when the target was taken over
//
// An event only says "look again": what is applied is the row as it is when it is read.
package apply
