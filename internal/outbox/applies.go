package outbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/metrics"
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
	// openAgain is the pause before an apply is tried again that a person's transaction holds.
	openAgain = 20 * time.Millisecond
	// countEvery is how often applies that have not ended are counted.
	countEvery = 15 * time.Second
)

// unopened returns the applies that are not open by their transactions, if changes of base tables in a page may belong to
// one. The leader's own rows for such a change have another transaction; the apply must learn of it.
func (s *Steward) unopened(ctx context.Context, page *Page) (map[uint64]int64, error) {
	expands := false
	for _, e := range page.Events {
		expands = expands || e.DependencyID != nil && !e.Mark()
	}
	if !expands {
		return nil, nil
	}
	rows, err := store.New(s.Pool).AppliesUnopened(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which applies are not open: %w", err)
	}
	byXid := make(map[uint64]int64, len(rows))
	for _, row := range rows {
		byXid[row.Xid] = row.ID
	}
	return byXid, nil
}

// openApplies writes down operations and tasks of applies whose changes are all before a tick, and have been expanded.
func (s *Steward) openApplies(ctx context.Context, term int64, upto Tick) error {
	ids, err := store.New(s.Pool).AppliesToOpen(ctx, upto.Snapshot)
	if err != nil {
		return fmt.Errorf("read which applies are to be opened: %w", err)
	}
	for together := len(ids); len(ids) > 0; {
		opened, err := s.openSome(ctx, term, ids[:min(together, len(ids))], upto.Revision)
		switch {
		case err == nil:
			ids = ids[opened:]
		case ctx.Err() != nil || database.IsUnavailable(err) || passes(err):
			return fmt.Errorf("open apply %d: %w", ids[0], database.Explain(err))
		case together > 1:
			together = 1 // which of them it is
		default:
			if err := s.giveUpApply(ctx, term, ids[0], err); err != nil {
				return err
			}
			ids, together = ids[1:], len(ids)-1
		}
	}
	return nil
}

// passes reports whether an error says nothing about the apply: it was taken over, was in somebody's way, or there was no room.
func passes(err error) bool {
	code := database.Code(err)
	return code == "" || database.IsFenced(err) || strings.HasPrefix(code, "40") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "55") || strings.HasPrefix(code, "57")
}

// openSome opens applies until one of them is in somebody's way, is large, or time is over, and returns how many are open.
func (s *Steward) openSome(ctx context.Context, term int64, ids []int64, revision int64) (opened int, err error) {
	crash.Point(crash.BeforeOpen)
	began := time.Now()
	n, err := store.New(s.Pool).AppliesOpen(ctx, store.AppliesOpenParams{
		Owner: s.Instance, Term: term, Ids: ids, Revision: revision, MaxRows: openRows, Patience: openFor,
	})
	switch {
	case err != nil:
		return 0, err
	case n > 0:
		crash.Point(crash.AfterOpen)
		return int(n), nil
	}
	crash.Point(crash.OpenPiece)
	if time.Since(began) > openAgain {
		return 0, nil
	}
	select { // nothing was done, or little: somebody may hold it
	case <-time.After(openAgain / 4):
		return 0, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
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
func (s *Steward) noteEnd(e Event) {
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

// CountApplies keeps the number of applies that have not ended, by state, until its context ends; then it is 0, so that the
// sum over all processes is the leader's. An error is no reason to give up leadership: the next look is soon.
func (s *Steward) CountApplies(ctx context.Context) {
	defer s.Metrics.SetApplies(nil)
	failing := false // and it was said
	for {
		rows, err := store.New(s.Pool).AppliesUnderWay(ctx)
		if err == nil {
			byState := make(map[string]int64, len(rows))
			for _, row := range rows {
				byState[row.State] = row.Applies
			}
			s.Metrics.SetApplies(byState)
		} else if ctx.Err() == nil && !failing {
			s.Logger.Warn("applies_not_counted", "error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-time.After(cmp.Or(s.testCountEvery, countEvery)):
		}
	}
}
