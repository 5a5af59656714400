package leader

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

var (
	// houseEvery is how often the leader keeps house.
	houseEvery = pace.Of(30 * time.Second)
	// namesEvery is how often names are forgotten that have a row: release() removes targets; and they may be many.
	namesEvery = pace.Of(30 * time.Second)
)

const (
	rotateAfter = 5 * time.Minute
	// forgetTombstones is how many tombstones of a stream go at once.
	forgetTombstones = 10_000
	// forgetObjects is how many ledger rows of resources that are gone go at once.
	forgetObjects = 10_000
	// forgetAgain is the time until more of many old applies, objects or tombstones go.
	forgetAgain = time.Second
	// ticksKept is for how long every tick is kept, and a little more than the statement has it.
	ticksKept = 10*time.Minute + time.Second
	// clockSlack is by how much the server's clock may have been set back, or have run more slowly, for nothing to be done about it.
	clockSlack = time.Second
	// pastWhole is how often all ticks are looked at, which finds those that are too old altogether.
	pastWhole = time.Hour
)

// retain empties parts of the outbox.
func (s *Steward) retain(ctx context.Context) (time.Duration, error) {
	for {
		done, err := store.New(s.Pool).OutboxRetain(ctx, store.OutboxRetainParams{MaxAge: s.MaxAge, MaxRows: s.MaxRows, RotateAfter: rotateAfter})
		if err != nil {
			return 0, fmt.Errorf("empty the outbox: %w", database.Explain(err))
		}
		if done == "" {
			return houseEvery, nil
		}
		crash.Point(crash.OutboxRetained)
		s.Metrics.Retained.Inc()
		s.Logger.Debug("outbox_retained", "done", done)
	}
}

// forget returns a duty that removes old ticks, removed resources and old applies. At its first turn, and when the server's clock was
// set back, it sets times in the future to now.
func (s *Steward) forget() func(context.Context) (time.Duration, error) {
	var seen past
	var clock serverClock
	return func(ctx context.Context) (time.Duration, error) {
		now := time.Now()
		after, upto := seen.due(now)
		done, err := store.New(s.Pool).Forget(ctx, store.ForgetParams{
			After: after, Upto: upto, MaxAge: s.MaxAge, AppliesKept: appliesKept, MostApplies: forgetMost, MostObjects: forgetObjects, MostTombstones: forgetTombstones,
		})
		if err != nil {
			return 0, fmt.Errorf("forget old revisions, removed resources and their objects, old applies and old tombstones: %w", database.Explain(err))
		}
		if clock.putBack(done.Now, now) {
			if err := store.New(s.Pool).ClampTimes(ctx); err != nil {
				return 0, fmt.Errorf("set times in the future to now, as the server's clock was set back: %w", database.Explain(err))
			}
		}
		seen.did(now, upto, done.Newest)
		if done.MoreTombstones || done.Applies == forgetMost || done.Objects == forgetObjects {
			return forgetAgain, nil
		}
		return houseEvery, nil
	}
}

// serverClock is the server's clock at the last look, and the process's own. Its zero value knows nothing.
type serverClock struct{ server, local time.Time }

// putBack reports whether the server's clock may have been set back since the last look.
func (c *serverClock) putBack(server, local time.Time) bool {
	before := *c
	*c = serverClock{server, local}
	return before.server.IsZero() || server.Sub(before.server) < local.Sub(before.local)-clockSlack
}

// past remembers which was the newest revision when, so that only those that have grown old since the last look are looked at:
// where somebody's transaction stays open, all that were forgotten since it began are still to be walked by who looks at all of
// them. Its zero value knows nothing.
type past struct {
	whole time.Time // when all were looked at
	after int64     // up to here they were looked at since they are old
	marks []mark    // oldest first
}

type mark struct {
	at       time.Time
	revision int64 // the newest then
}

// due returns between which revisions to look at a time.
func (p *past) due(now time.Time) (after, upto int64) {
	if p.whole.IsZero() || now.Sub(p.whole) >= pastWhole {
		return -1, math.MaxInt64
	}
	upto = p.after
	for _, m := range p.marks {
		if now.Sub(m.at) > ticksKept {
			upto = m.revision
		}
	}
	return p.after, upto
}

// did says that they were looked at.
func (p *past) did(now time.Time, upto, newest int64) {
	if upto == math.MaxInt64 {
		p.whole = now
	} else {
		p.after = upto
	}
	p.marks = slices.DeleteFunc(append(p.marks, mark{now, newest}), func(m mark) bool { return m.revision <= p.after })
}

// markUncaptured returns a duty that has resources looked at as a whole whose triggers may not write the outbox, and once
// more when they may.
func (s *Steward) markUncaptured() func(context.Context) (time.Duration, error) {
	var before []int32
	return func(ctx context.Context) (time.Duration, error) {
		uncaptured, err := store.New(s.Pool).OutboxUncaptured(ctx, before)
		if err != nil {
			return 0, fmt.Errorf("mark resources whose changes are not captured: %w", err)
		}
		if len(uncaptured)+len(before) > 0 && s.Wake != nil {
			s.Wake()
		}
		before = uncaptured
		return houseEvery, nil
	}
}
