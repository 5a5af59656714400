package lease

import (
	"sync"
	"time"
)

// Grant is the right to work on one target, for one run of RunTarget.
type Grant struct {
	Target string
	ID     int32  // of the target's row
	Owner  string // this process's Config.Instance; with ID and Term what reconciler.fence takes
	Term   int64  // fencing term: higher than that of every run before
	// Clean is false when the target may have objects that the ledger does not know: an owner died or failed, and
	// no complete sync has been made since.
	Clean bool
	// Fresh says that the target has no cursor: everything must be read.
	Fresh bool
	// OptionsChanged says that the options differ from those that the target was last owned with: a full verifying
	// sync is due. It has been asked for in reconciler.sync_runs, so a crash does not forget it.
	OptionsChanged bool

	hold     *hold
	draining chan struct{}
	drain    sync.Once
}

// NewGrant returns a grant that nobody renews and that lives for as long as it says, for tests of what runs inside
// RunTarget. Its Drain closes Draining.
func NewGrant(target string, id int32, owner string, term int64, lives time.Duration) *Grant {
	return &Grant{
		Target: target, ID: id, Owner: owner, Term: term, Clean: true,
		hold:     newHold(sinceStart, sinceStart()+lives, func(error) {}, func() {}),
		draining: make(chan struct{}),
	}
}

// Remaining is how long the lease surely lives; 0 when it is lost.
func (g *Grant) Remaining() time.Duration { return g.hold.remaining() }

// Allows says whether something that takes up to d may start: it ends while the lease surely lives.
func (g *Grant) Allows(d time.Duration) bool {
	left := g.hold.remaining()
	return left > 0 && left >= d
}

// Over returns a function that says whether d has passed since, or the lease is lost. It goes by the clock that leases
// are judged by, which does not stand still while the machine is suspended, as Go's does.
func (g *Grant) Over(d time.Duration) func() bool {
	end := g.hold.clock() + d
	return func() bool { return g.hold.clock() >= end || g.hold.remaining() == 0 }
}

// Draining is closed when the owner should take no new work, finish what it has and return nil.
func (g *Grant) Draining() <-chan struct{} { return g.draining }

// Drain closes Draining. Calling it again does nothing.
func (g *Grant) Drain() { g.drain.Do(func() { close(g.draining) }) }
