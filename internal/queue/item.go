package queue

import "time"

// ObjectID names an object of the queue's target.
type ObjectID struct {
	ResourceID int32
	Key        string
}

// Item is an object to look at.
type Item[P any] struct {
	ObjectID
	Lane      Lane
	Revision  int64     // newest revision that concerns it; 0 when the sync or a retry asks
	Since     time.Time // when this process learned of the change; zero when the sync or a retry asks
	Force     bool      // call the driver even when the hash is unchanged, or (for a Delete) the ledger knows no object
	Due       bool      // its next attempt has come, and nothing else asks; adds nothing to what is in flight: that says when it is due again
	Payload   P         // what the owner of the queue adds
	bytes     int       // of its spec, while it is called for
	operation int64     // in flight as a part of it; 0: of none
	calling   bool      // in flight, and it may need a call: it takes room in the window
	deleted   bool      // in flight for its delete
	probe     bool      // in flight as the one that an open circuit lets through
}

// Payload is what the owner of a queue wants to know of an object, in addition.
type Payload[P any] interface {
	*P
	Merge(other *P) // adds that of another request for the same object
	Cut()           // is called when the object will not be settled
}

// IsProbe reports whether the object is in flight as the one that an open circuit lets through.
func (it *Item[P]) IsProbe() bool { return it.probe }

// merge adds what another request for the same object asks for.
func (q *Queue[P, M]) merge(it, other *Item[P]) {
	it.Revision = max(it.Revision, other.Revision)
	it.Force = it.Force || other.Force
	it.Due = it.Due && other.Due
	// The older of two changes has waited longer; what a sync or a retry asks for has no time.
	if it.Since.IsZero() || !other.Since.IsZero() && other.Since.Before(it.Since) {
		it.Since = other.Since
	}
	M(&it.Payload).Merge(&other.Payload)
	it.Lane = min(it.Lane, other.Lane)
}
