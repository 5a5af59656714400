package apply

import (
	"bytes"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// action is what a look at an object leads to.
type action int

const (
	actNothing action = iota // as it should be, or waiting for something else
	actRecord                // only the ledger changes
	actApply
	actDelete
)

// waitingMin is the shortest pause before an object is called for again that waits for its target.
const waitingMin = 100 * time.Millisecond

// Who holds an object back; values of the ledger's held_by.
const (
	heldByPause = "pause"
	heldByGuard = "guard"
	heldByBatch = "batch" // parked while the deletes of a big batch are counted
	heldBySync  = "sync"  // parked while a sync counts its tombstones
	heldByGate  = "gate"  // its target waits for its turn in an apply
)

// record is what the ledger is to say about an object. A gone record removes the ledger's row.
type record struct {
	gone            bool
	state           desired.State
	wanted, present bool
	desiredRevision int64
	appliedRevision int64 // 0: unchanged
	appliedHash     []byte
	failedHash      []byte
	attempts        int32
	err             string
	heldBy          string
	approved        bool
	protected       bool
	earlier         bool    // the ledger may know a later protected: unchanged
	delay           float64 // seconds until the next attempt; negative: none
	called          bool
	match           string
	generation      int32  // of the ledger row that the look has read; negative: whatever it is
	memory          []byte // of the driver; nil: unchanged
}

// look is everything that a decision is made from.
type look struct {
	item   *Item
	row    desired.Row
	paused bool
	drain  bool   // release(objects => 'delete') was called
	park   string // a page's deletes are being counted or held: held_by for a delete, or ""
	guard  func() bool
	now    int64 // revision known when the row was read
	readAt time.Time
	act    action
	// resource is what the object is one of. The catalog may not have it any more when the call is made.
	resource *desired.Resource
}

// decide says what to do about an object, and what the ledger is to say if no call is made.
func decide(l look) (action, *record) {
	if l.row.Err != nil && !l.drain {
		return decideSpoiled(l)
	}
	if l.row.Wanted && !l.drain {
		return decideWanted(l)
	}
	return decideUnwanted(l)
}

func (l look) base() record {
	r := record{wanted: l.row.Wanted && !l.drain, desiredRevision: max(l.item.Revision, 0), delay: -1, match: string(l.row.Match)}
	if e := l.row.Ledger; e != nil {
		r.present, r.appliedHash, r.attempts = e.Present, e.AppliedHash, e.Attempts
		r.desiredRevision = max(r.desiredRevision, e.DesiredRevision)
		r.failedHash, r.approved, r.generation = e.FailedHash, e.Approved, e.Generation
		if r.wanted || l.protected() {
			r.approved = l.approved()
		}
		if e.LastError != nil {
			r.err = *e.LastError
		}
		if e.Wanted != r.wanted {
			r.attempts = 0 // those were made at something else
		}
	}
	r.protected = l.row.Protected || r.approved && r.wanted || !r.wanted && l.protected()
	if r.desiredRevision == 0 {
		r.desiredRevision = l.now
	}
	return r
}

// decideSpoiled blocks a row that cannot become an object. It deletes nothing: the row is there.
func decideSpoiled(l look) (action, *record) {
	e, text := l.row.Ledger, clip(l.row.Err.Error())
	if e != nil && e.State == desired.Blocked && e.LastError != nil && *e.LastError == text && e.Protected == l.row.Protected {
		return actNothing, nil
	}
	r := l.base()
	r.state, r.wanted, r.err, r.failedHash, r.attempts, r.protected = desired.Blocked, true, text, nil, 0, l.row.Protected
	return actRecord, &r
}

func decideWanted(l look) (action, *record) {
	e := l.row.Ledger
	again := l.item.Force || l.reapplies() || l.item.Payload.recheck
	if e != nil && !l.item.Force {
		switch {
		case e.State == desired.Applied && bytes.Equal(e.AppliedHash, l.row.Hash[:]) && !again:
			return l.unchanged()
		case e.State == desired.Blocked && bytes.Equal(e.FailedHash, l.row.Hash[:]):
			return l.unchanged()
		case e.State == desired.Failing && e.Wanted && !due(e) && bytes.Equal(e.FailedHash, l.row.Hash[:]):
			return l.unchanged() // it keeps its turn
		case held(e, heldByGuard) && e.Wanted && bytes.Equal(e.FailedHash, l.row.Hash[:]):
			return actNothing, nil // the driver waits for approval of this spec
		}
	}
	r := l.base()
	if e != nil && e.Present && bytes.Equal(e.AppliedHash, l.row.Hash[:]) && !again {
		// The target has it; only the ledger stands elsewhere (held, or to be deleted before the row came back).
		r.state, r.err, r.attempts, r.failedHash, r.approved, r.protected = desired.Applied, "", 0, nil, false, l.row.Protected
		r.appliedRevision = max(l.item.Revision, l.now)
		return actRecord, &r
	}
	by := l.heldBack()
	if by == "" {
		return actApply, nil
	}
	return hold(e, r, by, again)
}

// unchanged records of a wanted object that needs no call whether its deletes are protected, if that has changed.
func (l look) unchanged() (action, *record) {
	e, r := l.row.Ledger, l.base()
	if e.Protected == r.protected {
		return actNothing, nil
	}
	r.state = e.State
	if e.DueIn != nil {
		r.delay = max(*e.DueIn, 0)
	}
	return actRecord, &r
}

// hold records that something keeps a wanted object back, unless the ledger says so already.
func hold(e *desired.Entry, r record, by string, again bool) (action, *record) {
	if held(e, by) && e.Wanted && e.Protected == r.protected {
		return actNothing, nil
	}
	r.state, r.heldBy = desired.Held, by
	if again {
		r.appliedHash = nil // what the target has now is not known: it is called for when nothing holds it any more
	}
	return actRecord, &r
}

// heldBack says what keeps a wanted object from being called for; "": nothing does.
func (l look) heldBack() string {
	e := l.row.Ledger
	switch has := e != nil && e.Present && bytes.Equal(e.AppliedHash, l.row.Hash[:]); {
	case l.gated() && !has:
		return heldByGate
	case l.paused:
		return heldByPause
	}
	return ""
}

// gated reports whether an apply holds the object: it keeps what it has until its target's turn comes.
func (l look) gated() bool { return l.row.Task != nil && !l.row.Task.Open }

// reapplies reports whether an apply has the object applied again, whatever the target has.
func (l look) reapplies() bool { return l.row.Task != nil && l.row.Task.Open && l.row.Task.Reapply }

func decideUnwanted(l look) (action, *record) {
	e := l.row.Ledger
	switch {
	// What was due had been in the ledger: it has been deleted since.
	case e == nil && (!l.item.Force || l.item.Due), e != nil && l.deleteWaits(e):
		return actNothing, nil
	case e != nil && !e.Present && !l.item.Force:
		return actRecord, &record{gone: true}
	}
	approved := l.drain || e != nil && e.Approved
	if l.protected() {
		approved = l.approved()
	}
	if holder := l.holder(e, approved); holder != "" {
		r := l.base()
		if held(e, holder) && !e.Wanted && e.Protected == r.protected {
			return actNothing, nil
		}
		r.state, r.heldBy, r.present = desired.Held, holder, true
		if r.protected {
			r.err = "" // of other calls: the reason is the row
		}
		return actRecord, &r
	}
	return actDelete, nil
}

// deleteWaits reports whether the ledger already says all that there is to do about an object that no row wants.
func (l look) deleteWaits(e *desired.Entry) bool {
	if e.State == desired.Blocked && !e.Present && shortenedKey.MatchString(l.item.Key) {
		return true // its row has the whole key: only that finds it
	}
	if e.Wanted || !e.Present && !l.item.Force || l.protected() && !e.Protected {
		return false
	}
	return e.State == desired.Failing && !due(e) || e.State == desired.Blocked && !l.item.Force
}

// holder says who holds a delete back, or "".
func (l look) holder(e *desired.Entry, approved bool) string {
	switch {
	case !approved && (l.protected() || held(e, heldByGuard)):
		return heldByGuard // only approve() or the row's return lets it go: no pause, no sync, no later window
	case l.gated() && !l.drain:
		return heldByGate
	case l.paused:
		return heldByPause
	case approved || l.item.Payload.passed:
		return ""
	case (e == nil || !e.Present) && l.park != heldBySync:
		return "" // a former look's delete, which passed the guard, is made once more; only a sync finds what nothing has named
	case l.park != "":
		return l.park
	case e != nil && e.State == desired.Failing && !e.Wanted:
		return "" // it passed the guard at its first attempt
	case !l.guard():
		return heldByGuard
	}
	l.item.Payload.passed = true
	return ""
}

// protected reports whether a delete of the object waits for approve(), whatever else lets deletes pass. If there is a row (its target
// is given up), or the guard holds the object already, the ledger counts too: the driver may have asked.
func (l look) protected() bool {
	e := l.row.Ledger
	return l.row.Protected || e != nil && e.Protected && (l.row.Wanted || held(e, heldByGuard))
}

// approved reports whether approve() has released what this look leads to: the delete, or the spec that the driver has asked about.
func (l look) approved() bool {
	e := l.row.Ledger
	switch {
	case e == nil || !e.Approved || !e.Protected:
		return false
	case l.row.Wanted && !l.drain:
		return e.Wanted && bytes.Equal(e.FailedHash, l.row.Hash[:])
	}
	return !e.Wanted
}

// held reports whether something holds the object back.
func held(e *desired.Entry, by string) bool {
	return e != nil && e.State == desired.Held && e.HeldBy != nil && *e.HeldBy == by
}

func due(e *desired.Entry) bool { return e.DueIn == nil || *e.DueIn <= 0 }

// memory returns what the driver last had remembered of the object; nil for nothing.
func (l look) memory() []byte {
	if l.row.Ledger == nil {
		return nil
	}
	return l.row.Ledger.Memory
}

// news returns the memory of an outcome if the ledger has another one, else nil.
func (l look) news(memory []byte) []byte {
	if before := l.memory(); before != nil && bytes.Equal(before, memory) {
		return nil
	}
	return memory
}

// outcome turns the result of a call into the ledger's record.
func (l look) outcome(act action, out driver.Outcome, backoff throttle.Backoff) *record {
	r := l.base()
	r.called, r.present = true, true
	r.attempts++
	r.heldBy, r.memory = "", l.news(out.Memory)
	if out.Verdict == driver.VerdictDone {
		if act == actDelete {
			return &record{gone: true, called: true}
		}
		hash := l.row.Hash
		r.state, r.appliedHash, r.appliedRevision = desired.Applied, hash[:], max(l.item.Revision, l.now, 1)
		r.failedHash, r.attempts, r.err, r.approved, r.protected = nil, 0, "", false, l.row.Protected
		return &r
	}
	// What the target has now is not known: it may have taken half of it.
	r.appliedHash, r.failedHash, r.err = nil, nil, clip(out.Err.Error())
	if act == actApply {
		hash := l.row.Hash
		if e := l.row.Ledger; e == nil || !bytes.Equal(e.FailedHash, hash[:]) {
			r.attempts = 1 // another spec, another count
		}
		r.failedHash = hash[:]
	} else {
		r.wanted, r.approved = false, true // the guard let it pass once
	}
	switch out.Verdict {
	case driver.VerdictWaiting, driver.VerdictUnreachable:
		r.attempts--
		r.state, r.delay = desired.Pending, throttle.Jittered(max(out.After, waitingMin)).Seconds()
	case driver.VerdictUnapproved:
		r.attempts--
		r.state, r.heldBy, r.protected, r.approved = desired.Held, heldByGuard, true, false
	case driver.VerdictTerminal:
		r.state = desired.Blocked
	case driver.VerdictRetryAfter:
		r.state, r.delay = desired.Failing, max(throttle.Spread(out.After), throttle.Jittered(backoff.Min)).Seconds()
	default:
		r.state, r.delay = desired.Failing, throttle.Jittered(backoff.Pause(int(r.attempts))).Seconds()
	}
	return &r
}
