package apply

import "github.com/pgreconciler/reconciler/internal/queue"

// Names of the queue's.
type (
	ObjectID = queue.ObjectID
	Item     = queue.Item[payload]
	Lane     = queue.Lane
)

// The lanes.
const (
	LaneLive = queue.LaneLive
	LaneSync = queue.LaneSync
)

// payload is what an owner wants to know of an object in the queue.
type payload struct {
	firsts   []int64 // records of its first call
	park     string  // a delete is not called but held by this: deletes are being counted
	pages    []*span
	runs     []*Run
	passed   bool // the guard has let its delete pass
	recheck  bool // it may have changed in the target: it is called for if the ledger says that it is applied
	yielded  bool // what was asked for at the same time has gone before it, for it removes what that may want
	uncalled bool // it has records of its first call, and the call has not begun: the target has not got it, whatever the ledger says
}

// Merge adds that of another request for the same object.
func (p *payload) Merge(other *payload) {
	if p.park == "" {
		p.park = other.park
	}
	p.recheck = p.recheck || other.recheck
	p.pages = append(p.pages, other.pages...)
	p.runs = append(p.runs, other.runs...)
}

// Cut tells the runs that the object will not be settled.
func (p *payload) Cut() {
	for _, run := range p.runs {
		run.done(false)
	}
	p.runs = nil
}
