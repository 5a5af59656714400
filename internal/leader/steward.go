package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

// Steward does the leader's work beside the tick. It is a consumer of the outbox like a target, with a cursor of its
// own: it expands changes of base tables into events of the objects that they concern, and makes targets visible that
// rows name and no config has. It also empties the outbox, and mends capture where it can.
type Steward struct {
	Pool     *pgxpool.Pool
	Rows     *pgxpool.Pool // users' rows are read through it, see database.RowsSession; nil: Pool
	Instance string
	Feed     *outbox.Feed
	Catalog  *desired.Catalog
	MaxAge   time.Duration // of outbox rows that some consumer has not read
	MaxRows  int64         // of the outbox, with the same consequence
	// Wake makes the leader look at once: no trigger calls for the rows that the steward writes. Nil: the poll finds them.
	Wake    func()
	Logger  *slog.Logger
	Metrics *metrics.Metrics
	Loops   *loop.Monitor // nil: nobody is told what fails

	names   *registrar
	misfits *misfits
	opener  *opener

	// Of the duty that reads changes.
	loaded bool           // the cursor was read
	stored bool           // the cursor is in the database
	piece  int            // how many changes are expanded at once
	wrote  bool           // outbox rows were written that the leader does not know of
	marked bool           // an apply was begun in a batch that was read
	ended  map[string]int // applies that ended in the batch that is being read, by state

	testCountEvery time.Duration // tests shorten countEvery
	testAgain      time.Duration // tests shorten the pause after a failure
}

// Run works until its context ends, or with an error when leadership is lost. Its duties have nothing to do with each
// other's failures: each goes on, and tries again what failed. What needs the newest revision waits until ready is closed;
// nil: it is known.
func (s *Steward) Run(ctx context.Context, term int64, ready <-chan struct{}) error {
	s.marked, s.loaded = false, false
	s.stored, s.piece = false, pieceFirst
	s.names = &registrar{steward: s, known: map[string]bool{}, refused: map[string]bool{}}
	s.opener = &opener{steward: s, term: term, known: []int64{}, poke: make(chan struct{}, 1)}
	s.misfits = newMisfits(s)
	mender := &mender{steward: s, told: map[string]bool{}, tries: map[string]try{}}
	group, ctx := errgroup.WithContext(ctx)
	for _, d := range []duty{
		{name: loop.Expand, turn: s.follow(term), after: ready},
		{name: loop.Open, turn: s.opener.turn, wake: s.opener.poke, after: ready},
		{name: loop.Register, turn: s.names.turn},
		{name: loop.Retain, turn: s.retain},
		{name: loop.Forget, turn: s.forget()},
		{name: loop.Mend, turn: mender.turn},
		{name: loop.Uncaptured, turn: s.markUncaptured()},
		{name: loop.Misfits, turn: s.misfits.turn, wake: s.misfits.poke, after: ready},
		{name: loop.Count, turn: s.count},
	} {
		group.Go(func() error { return d.run(ctx, s.Loops.Loop(d.name, ""), s.testAgain) })
	}
	err := group.Wait()
	s.Metrics.SetApplies(nil) // so that the sum over all processes is the leader's
	return err
}

// follow returns a turn of the duty that reads changes: one batch, or the wait for one.
func (s *Steward) follow(term int64) func(context.Context) (time.Duration, error) {
	var cur outbox.Tick
	return func(ctx context.Context) (pause time.Duration, err error) {
		if !s.loaded {
			if cur, err = s.load(ctx, term); err != nil {
				return 0, err
			}
			s.loaded = true
			s.opener.upTo(cur) // those that the former leader had read and not opened
		}
		latest, wake := s.Feed.Latest()
		if latest.Revision <= cur.Revision {
			s.Loops.Loop(loop.Expand, "").Succeeded() // nothing is left of what failed
			select {
			case <-ctx.Done():
				return 0, nil
			case <-wake:
			}
			latest, _ = s.Feed.Latest()
		}
		next, err := s.consume(ctx, term, cur, latest)
		if err != nil {
			return 0, err
		}
		cur = next
		if s.marked {
			s.marked = false
			s.opener.upTo(cur)
		}
		return 0, nil
	}
}

// load returns the steward's cursor. Without one it begins at the newest revision: the objects of what came before are the
// work of the first sync of each target, unless a target has begun before this cursor was ever kept (the first leader
// died); then nobody knows which changes of base tables no first sync has seen. Where it begins is written down: wait() asks
// whether changes of base tables have been expanded, and in a quiet database no batch follows that would move the cursor.
func (s *Steward) load(ctx context.Context, term int64) (outbox.Tick, error) {
	if _, err := s.Catalog.Reload(ctx, s.Pool); err != nil {
		return outbox.Tick{}, err
	}
	row, err := store.New(s.Pool).LeaderCursor(ctx)
	if err != nil {
		return outbox.Tick{}, fmt.Errorf("read the leader's cursor: %w", err)
	}
	if row.Revision > 0 {
		s.stored = true
		return outbox.Tick{Revision: row.Revision, Snapshot: row.Snapshot}, nil
	}
	latest, _ := s.Feed.Latest()
	if s.Catalog.HasDependencies() {
		if err := s.begin(ctx, term, latest); err != nil {
			return outbox.Tick{}, err
		}
	}
	return latest, s.nameTargets(ctx, s.Catalog.All())
}

// begin keeps the first cursor. A target that begins from here on reads its rows after this revision.
func (s *Steward) begin(ctx context.Context, term int64, latest outbox.Tick) error {
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
func (s *Steward) consume(ctx context.Context, term int64, from, to outbox.Tick) (outbox.Tick, error) {
	var at outbox.Position
	s.ended = map[string]int{}
	for {
		s.Loops.Loop(loop.Expand, "").Began() // a batch may take long, a page does not
		page, err := s.Feed.Read(ctx, from, to, at)
		if errors.Is(err, outbox.ErrBelowFloor) {
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
		return to, nil
	}
}

// page expands the changes of base tables in a page and makes unknown targets visible. A page that is expanded twice
// (after a crash inside a batch) marks objects twice, which costs a look at each.
func (s *Steward) page(ctx context.Context, term int64, page *outbox.Page, to outbox.Tick, last bool) error {
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
	s.misfits.note(page)
	if err := s.names.register(ctx, slices.Collect(maps.Keys(page.Names()))); err != nil {
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
func (s *Steward) skip(ctx context.Context, term int64, to outbox.Tick) error {
	s.Logger.Warn("leader_cursor_below_floor", "effect", "joined resources are synced in full")
	if err := s.markJoined(ctx); err != nil {
		return err
	}
	defer s.wake()
	s.marked = true // for all that is known
	return s.expand(ctx, term, nil, to, true)
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
