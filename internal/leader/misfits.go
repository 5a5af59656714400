package leader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// misfitPause is the least time between two looks at a resource for rows that can be no object. Each reads all of it, and
	// they take one part in misfitShare of the time at most.
	misfitPause = time.Second
	misfitShare = 20
	// misfitEvery is how often a view is looked at though no event tells of such a row: none does of a key that is null.
	misfitEvery = 10 * time.Minute
)

// misfits is the duty that names running rows which can be no object. Nobody but the leader sees them.
type misfits struct {
	steward *Steward
	poke    chan struct{}

	mu     sync.Mutex          // guards what follows
	due    map[int32]bool      // resources that an event has told of
	looked map[int32]time.Time // when a resource was looked at
	next   map[int32]time.Time // when it may be looked at again
}

func newMisfits(s *Steward) *misfits {
	return &misfits{steward: s, poke: make(chan struct{}, 1), due: map[int32]bool{}, looked: map[int32]time.Time{}, next: map[int32]time.Time{}}
}

// note takes down which resources of a page have events of such rows.
func (m *misfits) note(page *outbox.Page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.due)
	for name, places := range page.Names() {
		if !desired.TargetFits(name) {
			for _, i := range places {
				m.due[page.Events[i].ResourceID] = true
			}
		}
	}
	for _, e := range page.Events {
		if e.Whole() && !e.Mark() || e.Key != nil && desired.Shortened(*e.Key) {
			m.due[e.ResourceID] = true
		}
	}
	if len(m.due) > before {
		select {
		case m.poke <- struct{}{}:
		default:
		}
	}
}

// turn looks at the resources whose turn it is: each once, then those that events tell of, those that had such rows, and views.
func (m *misfits) turn(ctx context.Context) (time.Duration, error) {
	known, err := store.New(m.steward.Pool).MisfitResources(ctx)
	if err != nil {
		return 0, fmt.Errorf("read which rows can be no object: %w", err)
	}
	ids, pause := m.take(known)
	for _, id := range ids {
		if r, ok := m.steward.Catalog.ByID(id); ok {
			err = errors.Join(err, m.look(ctx, r))
		}
	}
	return pause, err
}

// take returns the resources that may be looked at now, and when to ask again.
func (m *misfits) take(known []int32) (ids []int32, pause time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, id := range known {
		if now.Sub(m.looked[id]) >= houseEvery {
			m.due[id] = true
		}
	}
	for _, r := range m.steward.Catalog.All() {
		if _, once := m.looked[r.ID]; !once || r.Joined() && now.Sub(m.looked[r.ID]) >= misfitEvery {
			m.due[r.ID] = true
		}
	}
	pause = houseEvery
	for _, id := range slices.Sorted(maps.Keys(m.due)) {
		if wait := m.next[id].Sub(now); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		delete(m.due, id)
		m.looked[id] = now
		ids = append(ids, id)
	}
	return ids, pause
}

// look looks at one resource.
func (m *misfits) look(ctx context.Context, r *desired.Resource) error {
	began := time.Now()
	found, err := r.Misfits(ctx, database.Rows(m.steward.rows()))
	m.mu.Lock()
	pause := max(misfitPause, misfitShare*time.Since(began))
	if err != nil { // a transaction has locked the table, say
		m.due[r.ID], pause = true, max(pause, houseEvery)
	}
	m.next[r.ID] = time.Now().Add(pause)
	m.mu.Unlock()
	switch {
	case ctx.Err() != nil || database.IsUnavailable(err):
		return err
	case err != nil: // its syncs fail for the same reason, and say so
		m.steward.Logger.Warn("misfits_unreadable", "resource", r.Name, "error", err)
	case len(found) > 0:
		m.steward.Logger.Warn("rows_unfit", "resource", r.Name, "rows", len(found), "reason", found[0].Reason, "effect", "they are no objects until they are corrected")
	}
	return nil
}
