package leader

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// openRows bounds the outbox rows that become tasks in one transaction: it holds the leadership's row, which the
	// heartbeat needs.
	openRows = 5000
	// openFor bounds how long applies are opened in one transaction, for the same reason.
	openFor = 50 * time.Millisecond
	// appliesKept is how long applies that have ended are kept, and forgetMost how many go at once.
	appliesKept = 90 * 24 * time.Hour
	forgetMost  = 10
	// openAgain is how long a turn takes at least that made progress with a large apply; a quarter of it and openAgainMost are
	// the first and the longest pause before applies are tried again that a person's transaction holds.
	openAgain     = 20 * time.Millisecond
	openAgainMost = 200 * time.Millisecond
)

var (
	// openLook is how often applies to be opened are looked for when nothing tells of any.
	openLook = pace.Of(30 * time.Second)
	// countEvery is how often applies that have not ended are counted.
	countEvery = pace.Of(15 * time.Second)
)

// unopened returns the applies that are not open by their transactions, if changes of base tables in a page may belong to
// one. The leader's own rows for such a change have another transaction; the apply must learn of it.
func (s *Steward) unopened(ctx context.Context, page *outbox.Page) (map[uint64]int64, error) {
	var xids []uint64
	for _, e := range page.Events {
		if e.DependencyID != nil && !e.Mark() && !slices.Contains(xids[max(0, len(xids)-1):], e.Xid) {
			xids = append(xids, e.Xid)
		}
	}
	if len(xids) == 0 {
		return nil, nil
	}
	rows, err := store.New(s.Pool).AppliesUnopened(ctx, xids)
	if err != nil {
		return nil, fmt.Errorf("read which applies are not open: %w", err)
	}
	byXid := make(map[uint64]int64, len(rows))
	for _, row := range rows {
		byXid[row.Xid] = row.ID
	}
	return byXid, nil
}

// opener opens applies whose changes are all before a tick, and have been expanded. That an apply is in somebody's way, or
// cannot be opened, keeps neither other applies waiting nor the changes that come after it.
type opener struct {
	steward *Steward
	term    int64
	poke    chan struct{}
	pause   time.Duration // the last one, while applies are in somebody's way

	// What the last look found that is not open, and where the next one begins.
	known []int64
	since uint64

	mu   sync.Mutex
	upto outbox.Tick // everything up to here has been expanded
}

// upTo has applies opened up to a tick.
func (o *opener) upTo(tick outbox.Tick) {
	o.mu.Lock()
	o.upto = tick
	o.mu.Unlock()
	select {
	case o.poke <- struct{}{}:
	default:
	}
}

// turn opens what can be opened now.
func (o *opener) turn(ctx context.Context) (time.Duration, error) {
	o.mu.Lock()
	upto := o.upto
	o.mu.Unlock()
	if upto.Snapshot == "" {
		return openLook, nil
	}
	look, err := store.New(o.steward.Pool).AppliesToOpen(ctx, store.AppliesToOpenParams{Snapshot: upto.Snapshot, After: o.since, Known: o.known})
	if err != nil {
		return 0, fmt.Errorf("read which applies are to be opened: %w", err)
	}
	o.known, o.since = look.Unopened, look.Since
	ids := look.Ripe
	began, left := time.Now(), len(ids)
	for together := len(ids); len(ids) > 0; {
		o.steward.Loops.Loop(loop.Open, "").Began()
		opened, err := o.steward.openSome(ctx, o.term, ids[:min(together, len(ids))], upto.Revision)
		switch {
		case err == nil && opened > 0:
			ids, left, o.pause = ids[opened:], left-opened, 0
		case err == nil:
			ids, together = ids[1:], len(ids)-1 // it is in somebody's way, or large: others go on
		case ctx.Err() != nil || database.IsUnavailable(err):
			return 0, fmt.Errorf("open apply %d: %w", ids[0], database.Explain(err))
		case together > 1:
			together = 1 // which of them it is
		case locked(err):
			ids, together = ids[1:], len(ids)-1
		case passes(err):
			return 0, fmt.Errorf("open apply %d: %w", ids[0], database.Explain(err))
		default:
			if err := o.steward.giveUpApply(ctx, o.term, ids[0], err); err != nil {
				return 0, err
			}
			ids, left, together = ids[1:], left-1, len(ids)-1
		}
	}
	if left == 0 {
		return openLook, nil
	}
	if time.Since(began) > openAgain { // a large one, in pieces
		o.pause = 0
		return 0, nil
	}
	o.pause = min(max(2*o.pause, openAgain/4), openAgainMost)
	return o.pause, nil
}

// locked reports whether somebody holds what an apply needs, or has just written or (a target that is forgotten) deleted it.
// The next try reads anew what there is.
func locked(err error) bool {
	code := database.Code(err)
	return code == "55P03" || code == "23505" || code == "23503" || strings.HasPrefix(code, "40")
}

// passes reports whether an error says nothing about the apply: it was taken over, was in somebody's way, or there was no room.
func passes(err error) bool {
	code := database.Code(err)
	return code == "" || database.IsFenced(err) || strings.HasPrefix(code, "40") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "55") || strings.HasPrefix(code, "57")
}

// openSome opens applies until one of them is in somebody's way, is large, or time is over, and returns how many are open.
func (s *Steward) openSome(ctx context.Context, term int64, ids []int64, revision int64) (opened int, err error) {
	crash.Point(crash.BeforeOpen)
	n, err := store.New(s.Pool).AppliesOpen(ctx, store.AppliesOpenParams{
		Owner: s.Instance, Term: term, Ids: ids, Revision: revision, MaxRows: openRows, Patience: openFor,
	})
	switch {
	case err != nil:
		return 0, err
	case n > 0:
		crash.Point(crash.AfterOpen)
	default:
		crash.Point(crash.OpenPiece)
	}
	return int(n), nil
}

// giveUpApply fails an apply that cannot be opened: owners wait for it to be open, and must not for ever.
func (s *Steward) giveUpApply(ctx context.Context, term, id int64, why error) error {
	s.Logger.Error("apply_not_opened", "apply", id, "error", why, "effect", "its changes are applied as if there was none")
	if err := store.New(s.Pool).ApplyFail(ctx, store.ApplyFailParams{Owner: s.Instance, Term: term, ID: id, Reason: why.Error()}); err != nil {
		return fmt.Errorf("give up apply %d: %w", id, database.Explain(err))
	}
	return nil
}

// noteEnd remembers the end of an apply that the batch tells of.
func (s *Steward) noteEnd(e outbox.Event) {
	var end struct {
		State string `json:"state"`
	}
	if json.Unmarshal(e.Image, &end) == nil && slices.Contains(metrics.ApplyEnds, end.State) {
		s.ended[end.State]++
	}
}

// countEnds counts the ends of a batch when the cursor has moved over it: a batch that is read again, after an error in the
// middle, is not counted twice. Those that a takeover skips are not counted at all.
func (s *Steward) countEnds() {
	for state, n := range s.ended {
		s.Metrics.AppliesEnded.WithLabelValues(state).Add(float64(n))
	}
}

// count keeps the number of applies that have not ended, by state.
func (s *Steward) count(ctx context.Context) (time.Duration, error) {
	rows, err := store.New(s.Pool).AppliesUnderWay(ctx)
	if err != nil {
		return 0, fmt.Errorf("count applies: %w", err)
	}
	byState := make(map[string]int64, len(rows))
	for _, row := range rows {
		byState[row.State] = row.Applies
	}
	s.Metrics.SetApplies(byState)
	return cmp.Or(s.testCountEvery, countEvery), nil
}
