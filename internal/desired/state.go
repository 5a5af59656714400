package desired

// State is the state of an object in the ledger, as the type reconciler.object_state.
type State string

// The states of an object.
const (
	Pending State = "pending" // known, not settled
	Applied State = "applied" // the target is as wanted
	Failing State = "failing" // will be tried again
	Blocked State = "blocked" // waits for a new spec or for retry()
	Held    State = "held"    // paused, guarded, parked by a sync, or gated
)
