package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	houseEvery  = 30 * time.Second
	rotateAfter = 5 * time.Minute
	// targetNames bounds how many unknown targets a resource may make visible at once.
	targetNames = 1000
)

// Steward does the leader's work beside the tick. It is a consumer of the outbox like a target, with a cursor of its
// own: it expands changes of base tables into events of the objects that they concern, and makes targets visible that
// rows name and no config has. It also empties the outbox, and mends capture where it can.
type Steward struct {
	Pool     *pgxpool.Pool
	Instance string
	Feed     *Feed
	Catalog  *desired.Catalog
	MaxAge   time.Duration // of outbox rows that some consumer has not read
	MaxRows  int64         // of the outbox, with the same consequence
	// Wake makes the leader look at once: no trigger calls for the rows that the steward writes. Nil: the poll finds them.
	Wake    func()
	Logger  *slog.Logger
	Metrics *metrics.Metrics

	known    map[string]bool // targets with a row
	problems map[string]bool // capture problems that were logged
	stored   bool            // the cursor is in the database
	piece    int             // how many changes are expanded at once
	wrote    bool            // outbox rows were written that the leader does not know of
	marked   bool            // an apply was begun in the batch that is being read
	ended    map[string]int  // applies that ended in it, by state

	testCountEvery time.Duration // tests shorten countEvery
}

// Run works until its context ends, or with an error when leadership or the database are lost.
func (s *Steward) Run(ctx context.Context, term int64) error {
	s.marked = false
	s.known, s.problems, s.stored, s.piece = map[string]bool{}, map[string]bool{}, false, pieceFirst
	cur, err := s.load(ctx, term)
	if err != nil {
		return stopped(ctx, err)
	}
	house := time.NewTimer(0)
	defer house.Stop()
	for {
		latest, wake := s.Feed.Latest()
		if latest.Revision > cur.Revision {
			if cur, err = s.consume(ctx, term, cur, latest); err != nil {
				return stopped(ctx, err)
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-house.C:
			if err := s.keepHouse(ctx); err != nil {
				return stopped(ctx, err)
			}
			house.Reset(houseEvery)
		}
	}
}

func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// load returns the steward's cursor. Without one it begins at the newest revision: the objects of what came before are the
// work of the first sync of each target, unless a target has begun before this cursor was ever kept (the first leader
// died); then nobody knows which changes of base tables no first sync has seen. Where it begins is written down: wait() asks
// whether changes of base tables have been expanded, and in a quiet database no batch follows that would move the cursor.
func (s *Steward) load(ctx context.Context, term int64) (Tick, error) {
	if _, err := s.Catalog.Reload(ctx, s.Pool); err != nil {
		return Tick{}, err
	}
	row, err := store.New(s.Pool).LeaderCursor(ctx)
	if err != nil {
		return Tick{}, fmt.Errorf("read the leader's cursor: %w", err)
	}
	if row.Revision > 0 {
		s.stored = true
		cur := Tick{Revision: row.Revision, Snapshot: row.Snapshot}
		return cur, s.openApplies(ctx, term, cur) // those that the former leader had read and not opened
	}
	latest, _ := s.Feed.Latest()
	if s.Catalog.HasDependencies() {
		if err := s.begin(ctx, term, latest); err != nil {
			return Tick{}, err
		}
	}
	if err := s.openApplies(ctx, term, latest); err != nil {
		return Tick{}, err
	}
	return latest, s.nameTargets(ctx, s.Catalog.All())
}

// begin keeps the first cursor. A target that begins from here on reads its rows after this revision.
func (s *Steward) begin(ctx context.Context, term int64, latest Tick) error {
	unexpanded, err := store.New(s.Pool).ChangesUnexpanded(ctx)
	if err != nil {
		return fmt.Errorf("see whether changes of base tables were left: %w", err)
	}
	if unexpanded {
		s.Logger.Info("leader_cursor_missing", "effect", "joined resources are synced in full")
		if err := s.markJoined(ctx); err != nil {
			return err
		}
		defer s.wake()
	}
	return s.expand(ctx, term, nil, latest, true)
}

// consume reads one batch, page by page, and moves the cursor over it.
func (s *Steward) consume(ctx context.Context, term int64, from, to Tick) (Tick, error) {
	var at Position
	s.ended = map[string]int{}
	for {
		page, err := s.Feed.Read(ctx, from, to, at)
		if errors.Is(err, ErrBelowFloor) {
			return to, s.skip(ctx, term, to)
		}
		if err != nil {
			return from, err
		}
		if err := s.page(ctx, term, page, to, !page.More); err != nil {
			return from, err
		}
		s.wake()
		if page.More {
			at = page.Last
			continue
		}
		s.countEnds()
		if s.marked {
			s.marked = false
			return to, s.openApplies(ctx, term, to)
		}
		return to, nil
	}
}

// page expands the changes of base tables in a page and makes unknown targets visible. A page that is expanded twice
// (after a crash inside a batch) marks objects twice, which costs a look at each.
func (s *Steward) page(ctx context.Context, term int64, page *Page, to Tick, last bool) error {
	changes := map[change]bool{}
	whole := map[int32]bool{}
	applies, err := s.unopened(ctx, page)
	if err != nil {
		return err
	}
	for _, e := range page.Events {
		switch {
		case e.Mark():
			s.marked = true
			s.noteEnd(e)
		case e.DependencyID != nil:
			changes[change{apply: applies[e.Xid], resourceID: e.ResourceID, image: string(e.Image)}] = true
		case e.Whole():
			whole[e.ResourceID] = true
		}
	}
	if len(whole) > 0 || s.unknownResource(changes) {
		if _, err := s.Catalog.Reload(ctx, s.Pool); err != nil {
			return err
		}
	}
	if err := s.registerTargets(ctx, slices.Collect(maps.Keys(page.Names()))); err != nil {
		return err
	}
	for id := range whole {
		if r, ok := s.Catalog.ByID(id); ok {
			if err := s.nameTargets(ctx, []*desired.Resource{r}); err != nil {
				return err
			}
		}
	}
	if moves := last && (s.stored || s.Catalog.HasDependencies()); len(changes) > 0 || moves {
		return s.expand(ctx, term, changes, to, last)
	}
	return nil
}

// wake tells the leader of rows that were written and are committed.
func (s *Steward) wake() {
	if s.wrote && s.Wake != nil {
		crash.Point(crash.ExpandCommitted)
		s.Wake()
	}
	s.wrote = false
}

// skip moves the cursor over rows that retention removed, and has every joined resource looked at as a whole.
func (s *Steward) skip(ctx context.Context, term int64, to Tick) error {
	s.Logger.Warn("leader_cursor_below_floor", "effect", "joined resources are synced in full")
	if err := s.markJoined(ctx); err != nil {
		return err
	}
	defer s.wake()
	if err := s.expand(ctx, term, nil, to, true); err != nil {
		return err
	}
	return s.openApplies(ctx, term, to)
}

// markJoined has every joined resource looked at as a whole.
func (s *Steward) markJoined(ctx context.Context) error {
	for _, r := range s.Catalog.All() {
		if !r.Joined() {
			continue
		}
		if err := store.New(s.Pool).OutboxWhole(ctx, r.ID); err != nil {
			return fmt.Errorf("mark resource %s: %w", r.Name, err)
		}
	}
	s.wrote = true
	return nil
}

func (s *Steward) nameTargets(ctx context.Context, resources []*desired.Resource) error {
	for _, r := range resources {
		names, err := r.Targets(ctx, s.Pool, targetNames)
		if err != nil {
			if ctx.Err() != nil || database.IsUnavailable(err) {
				return err
			}
			s.Logger.Warn("targets_unreadable", "resource", r.Name, "error", err)
			continue
		}
		if err := s.registerTargets(ctx, names); err != nil {
			return err
		}
	}
	return nil
}

func (s *Steward) registerTargets(ctx context.Context, names []string) error {
	names = slices.DeleteFunc(names, func(name string) bool { return s.known[name] })
	if len(names) == 0 {
		return nil
	}
	if err := store.New(s.Pool).TargetsInsert(ctx, names); err != nil {
		return fmt.Errorf("make targets visible that rows name: %w", err)
	}
	for _, name := range names {
		s.known[name] = true
	}
	return nil
}

// keepHouse empties the outbox, forgets old ticks and removed resources, and mends capture.
func (s *Steward) keepHouse(ctx context.Context) error {
	clear(s.known) // release() removes targets; and their names may be many
	queries := store.New(s.Pool)
	for {
		done, err := queries.OutboxRetain(ctx, store.OutboxRetainParams{MaxAge: s.MaxAge, MaxRows: s.MaxRows, RotateAfter: rotateAfter})
		if err != nil {
			return fmt.Errorf("empty the outbox: %w", database.Explain(err))
		}
		if done == "" {
			break
		}
		crash.Point(crash.OutboxRetained)
		s.Metrics.Retained.Inc()
		s.Logger.Debug("outbox_retained", "done", done)
	}
	err := queries.Forget(ctx, store.ForgetParams{MaxAge: s.MaxAge, AppliesKept: appliesKept, MostApplies: forgetMost})
	if err != nil {
		return fmt.Errorf("forget old revisions, removed resources and old applies: %w", err)
	}
	return s.mend(ctx)
}

const problemsSQL = `SELECT resource, problem, remedy, healable FROM reconciler.capture_problems()`

// mend generates capture code again where that helps, and tells of the rest, once.
func (s *Steward) mend(ctx context.Context) error {
	rows, err := s.Pool.Query(ctx, problemsSQL)
	if err != nil {
		return fmt.Errorf("look for problems of capture: %w", err)
	}
	type problem struct {
		Resource, Problem, Remedy string
		Healable                  bool
	}
	problems, err := pgx.CollectRows(rows, pgx.RowToStructByPos[problem])
	if err != nil {
		return fmt.Errorf("look for problems of capture: %w", err)
	}
	found, tried := map[string]bool{}, map[string]error{}
	for _, p := range problems {
		err, again := tried[p.Resource]
		if p.Healable && !again {
			_, err = store.New(s.Pool).Regenerate(ctx, p.Resource)
			if database.IsUnavailable(err) {
				return err
			}
			tried[p.Resource] = err
			if err == nil {
				s.Logger.Info("capture_mended", "resource", p.Resource, "problem", p.Problem)
			}
		}
		if _, is := tried[p.Resource]; is && err == nil {
			continue // one generation mends all that it can; the next look tells of what is left
		}
		if p.Healable {
			p.Remedy = fmt.Sprintf("%s (tried: %v)", p.Remedy, err)
		}
		found[p.Resource+p.Problem] = true
		if !s.problems[p.Resource+p.Problem] {
			s.Logger.Error("capture_broken", "resource", p.Resource, "problem", p.Problem, "remedy", p.Remedy)
		}
	}
	s.problems = found
	return nil
}
