package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// mendLock is how long a repair waits for a lock: while it does, writers wait behind it.
	mendLock = 100 * time.Millisecond
	// lacksRight is the SQLSTATE of insufficient_privilege.
	lacksRight = "42501"
)

// mendAgainMin and mendAgainMost are the first and the longest pause before a resource is tried again that could not be mended.
var mendAgainMin, mendAgainMost = houseEvery / 2, pace.Of(10 * time.Minute)

// mender generates capture code again where that helps, and tells of the rest, once.
type mender struct {
	steward *Steward
	told    map[string]bool // problems that were logged
	tries   map[string]try  // resources that could not be mended
}

// try is what is known of a resource that could not be mended.
type try struct {
	pause time.Duration
	next  time.Time
	err   error
}

type problem struct {
	Resource, Problem, Remedy string
	Healable                  bool
}

const problemsSQL = `SELECT resource, problem, remedy, healable FROM reconciler.capture_problems()`

// turn mends capture, and then has resources synced whose rows are made from what DDL has changed: mending stores what they are
// made from.
func (m *mender) turn(ctx context.Context) (time.Duration, error) {
	pause, err := m.mendAll(ctx)
	return pause, errors.Join(err, m.syncAltered(ctx))
}

// syncAltered finds changes that no trigger sees: DDL on tables, views, functions and types.
func (m *mender) syncAltered(ctx context.Context) error {
	altered, err := store.New(m.steward.Pool).SourcesAltered(ctx)
	if err != nil {
		return fmt.Errorf("look for DDL that changes what rows ask for: %w", database.Explain(err))
	}
	for _, a := range altered {
		m.steward.Logger.Info("definition_altered", "resource", a.Name, "altered", a.Altered)
	}
	m.wake(len(altered) > 0)
	return nil
}

// wake has the leader look at outbox rows that the mender wrote.
func (m *mender) wake(wrote bool) {
	if wrote && m.steward.Wake != nil {
		m.steward.Wake()
	}
}

func (m *mender) mendAll(ctx context.Context) (time.Duration, error) {
	rows, err := m.steward.Pool.Query(ctx, problemsSQL)
	if err != nil {
		return 0, fmt.Errorf("look for problems of capture: %w", err)
	}
	problems, err := pgx.CollectRows(rows, pgx.RowToStructByPos[problem])
	if err != nil {
		return 0, fmt.Errorf("look for problems of capture: %w", err)
	}
	found, broken, mended := map[string]bool{}, map[string]try{}, map[string]bool{}
	for _, p := range problems {
		if p.Healable && !mended[p.Resource] {
			if _, tried := broken[p.Resource]; !tried {
				t, err := m.mend(ctx, p)
				if err != nil {
					return 0, err
				}
				if mended[p.Resource] = t.err == nil; t.err != nil {
					broken[p.Resource] = t
				}
			}
		}
		if mended[p.Resource] {
			continue // one generation mends all that it can; the next look tells of what is left
		}
		if t, is := broken[p.Resource]; p.Healable && is {
			p.Remedy = fmt.Sprintf("%s (tried: %v)", p.Remedy, t.err)
		}
		m.tell(p, found)
	}
	m.told, m.tries = found, broken
	for resource, t := range broken {
		if database.Code(t.err) != lacksRight { // doctor() says which; it is not for this process to mend
			return min(houseEvery, t.pause), fmt.Errorf("mend capture of resource %s: %w", resource, t.err)
		}
	}
	return houseEvery, nil
}

// mend tries a resource, unless it was tried in vain a short time ago. Its error says that the database is out of reach.
func (m *mender) mend(ctx context.Context, p problem) (try, error) {
	t := m.tries[p.Resource]
	if time.Now().Before(t.next) {
		return t, nil
	}
	if t.err = m.regenerate(ctx, p.Resource); database.IsUnavailable(t.err) {
		return t, t.err
	}
	if t.err == nil {
		m.steward.Logger.Info("capture_mended", "resource", p.Resource, "problem", p.Problem)
		return try{}, nil
	}
	t.pause = min(max(2*t.pause, mendAgainMin), mendAgainMost)
	t.next = time.Now().Add(t.pause)
	return t, m.syncBroken(ctx, p.Resource)
}

// syncBroken has a resource synced whose capture may miss changes.
func (m *mender) syncBroken(ctx context.Context, resource string) error {
	if err := store.New(m.steward.Pool).OutboxResource(ctx, resource); err != nil {
		return fmt.Errorf("have resource %s synced: %w", resource, err)
	}
	m.wake(true)
	return nil
}

func (m *mender) regenerate(ctx context.Context, resource string) error {
	return pgx.BeginFunc(ctx, m.steward.Pool, func(tx pgx.Tx) error {
		queries := store.New(tx)
		if err := queries.LockTimeoutSet(ctx, mendLock.Milliseconds()); err != nil {
			return fmt.Errorf("limit the wait for locks: %w", err)
		}
		_, err := queries.Regenerate(ctx, resource)
		return err //nolint:wrapcheck // by the caller
	})
}

func (m *mender) tell(p problem, found map[string]bool) {
	id := p.Resource + p.Problem
	found[id] = true
	if !m.told[id] {
		m.steward.Logger.Error("capture_broken", "resource", p.Resource, "problem", p.Problem, "remedy", p.Remedy)
	}
}
