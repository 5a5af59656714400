package apply

import (
	"maps"
	"slices"
	"sync"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// firstCalls knows which records of first calls are open: each names the objects of one read that the ledger did not know. A record
// ends when all of these objects have their results.
type firstCalls struct {
	mu      sync.Mutex
	left    map[int64]int     // by the number of a record: how many objects have no result, and one while it is handed out
	reading []int64           // records of the read that is being handed out
	ended   []int64           // records to be removed
	objects map[ObjectID]bool // on record, and without a result
}

func newFirstCalls() *firstCalls {
	return &firstCalls{left: map[int64]int{}, objects: map[ObjectID]bool{}}
}

// recorded is told of each record that a read has made.
func (f *firstCalls) recorded(number int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[number]++
	f.reading = append(f.reading, number)
}

// handedOut ends a read: those of its records that no object was taken from are over.
func (f *firstCalls) handedOut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, number := range f.reading {
		f.leaveLocked(number)
	}
	f.reading = f.reading[:0]
}

// takes adds an object to its record.
func (f *firstCalls) takes(it *Item, number int64) {
	if number == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[number]++
	f.objects[it.ObjectID] = true
	it.Payload.firsts = append(it.Payload.firsts, number)
}

// settles takes an object that has its result from its records.
func (f *firstCalls) settles(it *Item) {
	if len(it.Payload.firsts) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, number := range it.Payload.firsts {
		f.leaveLocked(number)
	}
	delete(f.objects, it.ObjectID)
	it.Payload.firsts = nil
}

// open are the objects on record that have no result.
func (f *firstCalls) open() []ObjectID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.objects))
}

// has reports whether an object is one of them.
func (f *firstCalls) has(id ObjectID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[id]
}

func (f *firstCalls) leaveLocked(number int64) {
	if f.left[number]--; f.left[number] == 0 {
		delete(f.left, number)
		f.ended = append(f.ended, number)
	}
}

// over returns the records that ended since the last time.
func (f *firstCalls) over() []int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ended := f.ended
	f.ended = nil
	slices.Sort(ended)
	return ended
}

// recorded is what the ledger would say of an object with a record of its first call, which has begun or has not.
func recorded(ledger *desired.Entry, called bool) *desired.Entry {
	e := desired.Entry{State: desired.Pending, Wanted: true}
	if ledger != nil {
		e = *ledger
	}
	if e.Present = called; called {
		e.State, e.Wanted, e.HeldBy, e.DueIn = desired.Pending, true, nil, nil
	}
	return &e
}
