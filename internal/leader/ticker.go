package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/store"
)

// Ticker makes revisions while this process is the leader.
type Ticker struct {
	URL      string // direct
	Name     string // application_name
	Instance string // uuid of this process, as in reconciler.leases
	Feed     *outbox.Feed
	Listener *outbox.Listener
	// Poll is how often the outbox is looked at when NOTIFY cannot be used. Default 100 ms.
	Poll time.Duration
	// Peers reports whether other processes run, which then are told of each tick. Nil means no.
	Peers   func() bool
	Logger  *slog.Logger
	Metrics *metrics.Metrics
	Loops   *loop.Monitor   // nil: nobody is told what fails
	Fleet   *database.Fleet // that its connection belongs to; nil: none

	leads atomic.Bool // the feed hears of every revision as it is made

	testDozing   chan struct{} // tests wait on it; nil in production
	testAsleep   chan struct{}
	testAwake    chan struct{}
	testPatience time.Duration // tests shorten leaderPatience
}

// leaderPatience is how long the leader waits for an answer of the database. A connection that is half open would
// otherwise stop all revisions until TCP gives it up, which takes minutes, while the lease is renewed on another one.
const leaderPatience = 10 * time.Second

// againMin and againMax are the first and the longest pause before the leader connects again; a session that was longer than three
// times againMax starts the count anew.
const againMin = 500 * time.Millisecond

var againMax = pace.Of(5 * time.Second)

var errSilent = errors.New("the database does not answer on the leader's connection")

// leader is one term of leadership: a connection of its own, which also carries the sleep lock, so that a process
// that dies or freezes loses both.
type leader struct {
	*Ticker

	term    int64
	conn    *pgx.Conn
	queries *store.Queries
	wake    <-chan struct{}
	control <-chan struct{}
	entry   *loop.Loop

	quiet    bool // writers never NOTIFY: reconciler.set_notify(false)
	mode     mode
	before   string    // dozing: snapshot whose transactions may have seen the lock free
	dozingAt time.Time // when dozing began
	wakeups  rate
	seen     int64 // notifications counted
	ticks    rate
	crowd    crowd
}

// Keep makes revisions until its context ends, or leadership is lost, or the database turns out to be a restored one. A
// connection that is lost is replaced. It closes ready when the newest revision of the database is known to the feed.
func (t *Ticker) Keep(ctx context.Context, term int64, ready chan<- struct{}) error {
	entry := t.Loops.Loop(loop.Tick, "")
	known := sync.OnceFunc(func() { close(ready) })
	again := againMin
	for {
		begun := time.Now()
		err := t.session(ctx, term, known)
		if ctx.Err() != nil {
			return nil
		}
		if database.IsFenced(err) || errors.Is(err, outbox.ErrRestored) {
			return err
		}
		entry.Failed(err)
		if time.Since(begun) > 3*againMax {
			again = againMin
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
		again = min(2*again, againMax)
	}
}

// Run makes revisions until its context ends or leadership or connection are lost.
func (t *Ticker) Run(ctx context.Context, term int64, ready chan<- struct{}) error {
	return t.session(ctx, term, func() { close(ready) })
}

func (t *Ticker) session(ctx context.Context, term int64, known func()) error {
	conn, err := database.Connect(ctx, t.URL, database.Options{Name: t.Name + " leader", Settings: database.WalkSession(), Fleet: t.Fleet})
	if err != nil {
		return err
	}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closeCtx) // frees the sleep lock; nothing else is lost
	}()
	wake := t.Listener.Subscribe(outbox.ChannelWake)
	defer t.Listener.Unsubscribe(outbox.ChannelWake, wake)
	control := t.Listener.Subscribe(outbox.ChannelControl)
	defer t.Listener.Unsubscribe(outbox.ChannelControl, control)
	l := &leader{
		Ticker: t, term: term, conn: conn, queries: store.New(conn), wake: wake, control: control, entry: t.Loops.Loop(loop.Tick, ""),
		wakeups: rate{window: rateWindow}, ticks: rate{window: sleepWindow},
	}
	crash.Point(crash.LeaderTaken)
	if err := l.adopt(ctx); err != nil {
		return err
	}
	if err := l.askNotify(ctx); err != nil {
		return err
	}
	known()
	t.leads.Store(true)
	defer t.leads.Store(false)
	t.Metrics.Leader.Set(1)
	defer t.Metrics.Leader.Set(0)
	t.Logger.Info("leader_started", "term", term)
	err = l.loop(ctx)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// adopt notices a restored database before the first tick of this term.
func (l *leader) adopt(ctx context.Context) error {
	known, _ := l.Feed.Latest()
	// It takes the leadership away from everybody, this process included, which may hear of that before its answer.
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(l.testPatience, leaderPatience))
	defer cancel()
	restored, err := outbox.Adopt(patient, l.queries, known.Revision, l.Fleet)
	if err != nil {
		return fmt.Errorf("compare the database with the one that revisions were made in: %w", database.Explain(err))
	}
	if restored {
		l.restored()
	}
	tick, err := outbox.Newest(patient, l.queries)
	if err != nil {
		return err
	}
	if restored {
		l.Feed.Reset(tick)
		return fmt.Errorf("%w: leadership begins again", outbox.ErrRestored)
	}
	l.Feed.Publish(tick)
	return nil
}

func (t *Ticker) restored() {
	t.Logger.Warn("database_restored", "effect", "every target is applied again in full")
}

func (l *leader) loop(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var why cause
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
			why = causeNotify
		case <-l.control:
			why = causeCommand
		case <-timer.C:
			why = causePoll
		}
		l.Metrics.Wakeups.WithLabelValues(string(why)).Inc()
		l.entry.Began()
		if err := l.step(ctx, why); err != nil {
			return err
		}
		l.entry.Succeeded()
		l.Metrics.Awake.Set(map[mode]float64{modeAwake: 1}[l.mode])
		timer.Reset(l.pause(time.Now()))
	}
}

// cause is why the leader looks at the outbox.
type cause string

const (
	causeNotify  cause = "notify"
	causeCommand cause = "command"
	causePoll    cause = "poll"
)

// step does what a wake-up asks for.
func (l *leader) step(ctx context.Context, why cause) error {
	patience := cmp.Or(l.testPatience, leaderPatience)
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errSilent)
	defer cancel()
	err := l.look(ctx, why)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return fmt.Errorf("%w for %s: %w", errSilent, patience, err)
	}
	return err
}

func (l *leader) look(ctx context.Context, why cause) error {
	var err error
	switch why {
	case causeNotify:
		err = l.notified(ctx, time.Now())
	case causeCommand:
		err = l.askNotify(ctx)
	case causePoll:
	}
	if err != nil {
		return err
	}
	if err := l.tick(ctx); err != nil {
		return err
	}
	return l.turn(ctx, time.Now())
}

// askNotify reads whether writers NOTIFY at all.
func (l *leader) askNotify(ctx context.Context) error {
	notify, err := l.queries.WritersNotify(ctx)
	if err != nil {
		return fmt.Errorf("read whether writers notify: %w", database.Explain(err))
	}
	l.quiet = !notify
	return nil
}

// hears reports whether a writer's call would reach a sleeping leader.
func (l *leader) hears() bool { return !l.quiet && l.Listener.Works() }

// notified goes awake when notifications come fast, or when commits queue to send them.
func (l *leader) notified(ctx context.Context, now time.Time) error {
	if l.mode == modeAwake {
		return nil
	}
	seen := l.Listener.Wakes()
	l.wakeups.add(seen - l.seen)
	l.seen = seen
	n, ended := l.wakeups.ended(now)
	if !ended || n < queueFromWakes {
		return nil
	}
	if n < awakeAfterWakes {
		queued, err := l.queries.NotifyQueue(ctx)
		if err != nil {
			return fmt.Errorf("see whether commits queue to notify: %w", err)
		}
		if queued < queueOfCommits {
			return nil
		}
	}
	if err := l.queries.SleepLockRelease(ctx); err != nil {
		return fmt.Errorf("give up the sleep lock: %w", err)
	}
	l.mode, l.before = modeAwake, ""
	l.ticks = rate{window: sleepWindow, start: now}
	reach(l.testAwake)
	return nil
}

// tick makes a revision if there is something new, and hands the first page of it to the feed with it.
func (l *leader) tick(ctx context.Context) error {
	rows, err := l.queries.TickInsert(ctx, store.TickInsertParams{Owner: l.Instance, Term: l.term, PageRows: outbox.PageRows})
	if err != nil {
		return fmt.Errorf("make a revision: %w", err)
	}
	if len(rows) == 0 {
		l.crowd.add(time.Now(), 0)
		return nil
	}
	crash.Point(crash.AfterTick)
	page := outbox.NewPage(outbox.Position{})
	for _, row := range rows {
		page.Add(row.Seq, row.Xid, outbox.Event{Xid: row.Xid, ResourceID: row.ResourceID, Target: row.Target, Key: row.Key, DependencyID: row.DependencyID, Image: row.Image})
	}
	l.Metrics.Ticks.Inc()
	l.ticks.add(1)
	l.crowd.add(time.Now(), len(page.Events))
	l.Feed.Prime(rows[0].Revision, page)
	l.Feed.Publish(outbox.Tick{Revision: rows[0].Revision, Snapshot: rows[0].Snapshot, At: rows[0].At})
	if l.Peers != nil && l.Peers() && l.Listener.Works() {
		if err := l.queries.NotifyTick(ctx); err != nil {
			return fmt.Errorf("tell other processes of a revision: %w", err)
		}
	}
	return nil
}

// turn moves between awake, dozing and asleep.
func (l *leader) turn(ctx context.Context, now time.Time) error {
	switch l.mode {
	case modeAwake:
		n, ended := l.ticks.ended(now)
		if !l.hears() || !ended || n >= sleepBelowTicks || l.crowd.poll() > awakePoll {
			return nil
		}
		return l.doze(ctx, now)
	case modeDozing:
		return l.fallAsleep(ctx)
	default:
		if !l.hears() {
			// Nobody calls, or is heard: stop asking writers to.
			l.mode = modeAwake
			return l.queries.SleepLockRelease(ctx)
		}
		return nil
	}
}

// doze takes the lock and then the snapshot, in this order: a transaction that found the lock free before has its
// outbox row, and so its id, already, and is in the snapshot unless it has ended; then the poll that follows sees its row.
func (l *leader) doze(ctx context.Context, now time.Time) error {
	locked, err := l.queries.SleepLockTry(ctx)
	if err != nil {
		return fmt.Errorf("take the sleep lock: %w", err)
	}
	if !locked { // a writer is probing at this moment
		return nil
	}
	if l.before, err = l.queries.SnapshotNow(ctx); err != nil {
		return fmt.Errorf("take a snapshot before sleeping: %w", err)
	}
	l.mode, l.dozingAt = modeDozing, now
	reach(l.testDozing)
	return l.tick(ctx)
}

func (l *leader) fallAsleep(ctx context.Context) error {
	inProgress, err := l.queries.StillInProgress(ctx, l.before)
	if err != nil {
		return fmt.Errorf("see which transactions have ended: %w", err)
	}
	if inProgress {
		return nil
	}
	// They ended between the tick before and this statement, maybe.
	if err := l.tick(ctx); err != nil {
		return err
	}
	l.mode, l.before = modeAsleep, ""
	reach(l.testAsleep)
	return nil
}

func (l *leader) pause(now time.Time) time.Duration {
	switch {
	case !l.hears():
		return l.poll()
	case l.mode == modeAwake:
		return l.crowd.poll()
	case l.mode == modeDozing && now.Sub(l.dozingAt) > dozeSlowFrom:
		return dozePollSlow
	case l.mode == modeDozing:
		return dozePoll
	default:
		return fallbackPoll
	}
}

func (t *Ticker) poll() time.Duration {
	if t.Poll > 0 {
		return t.Poll
	}
	return 100 * time.Millisecond
}

// Follow keeps the feed up to date in a process that is not the leader. In one that is it only listens: to the next
// leader, of which this process may hear before it knows that it leads no more.
func (t *Ticker) Follow(ctx context.Context) error {
	ticks := t.Listener.Subscribe(outbox.ChannelTick)
	defer t.Listener.Unsubscribe(outbox.ChannelTick, ticks)
	for {
		pause := fallbackPoll
		if !t.Listener.Works() {
			pause = t.poll()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		case <-time.After(pause):
			if t.leads.Load() {
				t.Loops.Loop(loop.Follow, "").Succeeded()
				continue
			}
		}
		err := t.Feed.Refresh(ctx)
		if errors.Is(err, outbox.ErrRestored) {
			t.restored()
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		t.Loops.Loop(loop.Follow, "").Done(err)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// reach tells a test that a point was reached.
func reach(point chan struct{}) {
	if point != nil {
		select {
		case point <- struct{}{}:
		default:
		}
	}
}
