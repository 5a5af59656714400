package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// strangerName is the application_name of those who do what they should not.
const strangerName = "faults stranger"

// strikeNovel begins one of the novelties. Bounds on recovery do not hold meanwhile.
func (w *world) strikeNovel(f fault) (end func()) {
	w.timeline.ill(partOrder)
	mend := w.beginNovel(f)
	if mend == nil {
		w.timeline.well(partOrder)
		return nil
	}
	return func() {
		mend()
		w.note("%s has ended", f.Kind)
		w.timeline.well(partOrder)
	}
}

func (w *world) beginNovel(f fault) (end func()) {
	switch f.Kind {
	case faultTruncate:
		return w.inFlight(f, w.truncate)
	case faultRedefine:
		return w.inFlight(f, w.redefine)
	case faultUntrack:
		return w.inFlight(f, w.untrack)
	case faultFleeting:
		return w.fleeting(f)
	case faultDrain:
		return w.drain()
	case faultSecurity:
		return w.rowSecurity()
	case faultTable, faultOutbox, faultNumbers, faultPauses, faultSwitch, faultOpenTrack:
		return w.leaveOpen(w.opens(f))
	case faultPooler:
		return w.pausePooler()
	case faultClock:
		return w.jump(f)
	case faultStartOver:
		return done(w.order(`SELECT reconciler.start_over('test')`))
	case faultReload:
		return done(w.dump())
	case faultSettings:
		return w.hostileSettings(f)
	case faultRows:
		return w.hostileRows(f)
	case faultFailover:
		return w.failOver(f)
	}
	return nil
}

// done is the end of a fault that is over at once, if it struck.
func done(struck bool) func() {
	if !struck {
		return nil
	}
	return func() {}
}

// opens returns what is left open by a kind of fault.
func (w *world) opens(f fault) (sql string) {
	switch f.Kind {
	case faultTable:
		others := slices.DeleteFunc(slices.Clone(w.plan.Resources), func(name string) bool { return name == "num" }) // the prober's
		return "LOCK TABLE " + resources[others[f.Choice%len(others)]].main + " IN ACCESS EXCLUSIVE MODE"
	case faultOutbox:
		return "LOCK TABLE reconciler.outbox, reconciler.ticks, reconciler.ledger IN ACCESS SHARE MODE"
	case faultNumbers: // those of old, and their neighbours
		if f.Choice%2 == 0 {
			return "SELECT pg_advisory_lock(reconciler.sleep_lock() + 1)"
		}
		return "SELECT pg_try_advisory_lock(reconciler.sleep_lock() + i) FROM generate_series(0, 2) AS i"
	case faultPauses:
		var all []string
		for _, e := range w.endpoints[:max(1, len(w.endpoints)-1)] {
			all = append(all, fmt.Sprintf("SELECT reconciler.pause('%s', 'left open')", e.plan.Name))
		}
		return strings.Join(all, "; ")
	case faultSwitch:
		return fmt.Sprintf("SELECT reconciler.set_notify(%v)", f.Choice%2 == 0)
	}
	return "CREATE TABLE IF NOT EXISTS left_open (id int PRIMARY KEY); SELECT reconciler.track('left_open', 'left_open', '{id}', $$'nowhere'$$)"
}

// leaveOpen begins a transaction, which is rolled back when the fault ends.
func (w *world) leaveOpen(sql string) (end func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 10*time.Second)
	defer cancel()
	conn, err := w.stranger(ctx)
	if err == nil {
		if _, err = conn.Exec(ctx, "BEGIN; "+sql); err != nil {
			_ = conn.Close(ctx) // it may have ended already
		}
	}
	if err != nil {
		w.note("not left open: %v", err)
		return nil
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 10*time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, "ROLLBACK") // the server may have crashed
		_ = conn.Close(ctx)
	}
}

// stranger opens a session for who has nothing to do with the product.
func (w *world) stranger(ctx context.Context) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(w.url())
	if err != nil {
		return nil, err
	}
	maps.Copy(config.RuntimeParams, mild)
	config.RuntimeParams["application_name"] = strangerName
	config.RuntimeParams["lock_timeout"] = "1s"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return pgx.ConnectConfig(ctx, config)
}

// act runs statements as a stranger does, and says whether they succeeded.
func (w *world) act(sql string) bool {
	err := w.try(sql)
	if err != nil {
		w.note("not done: %v", err)
	}
	return err == nil
}

func (w *world) try(sql string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 20*time.Second)
	defer cancel()
	conn, err := w.stranger(ctx)
	if err == nil {
		_, err = conn.Exec(ctx, sql)
		_ = conn.Close(ctx) // what counts is done
	}
	return err
}

// must has something done, as soon as that can be: the world could not be judged otherwise.
func (w *world) must(sql string) {
	w.owed = append(w.owed, sql)
	_ = w.pay() // what is left is tried again
}

// pay does what is still owed, as far as that can be, and says why something is left.
func (w *world) pay() (left error) {
	if w.stopped {
		return errors.New("the server is down")
	}
	w.owed = slices.DeleteFunc(w.owed, func(sql string) bool {
		err := w.try(sql)
		if err != nil {
			left = err
		}
		return err == nil
	})
	return left
}

// payAll does what is still owed when the faults have ended.
func (w *world) payAll() {
	var left error
	for range 100 {
		if left = w.pay(); left == nil {
			return
		}
		pass(100*time.Millisecond, w.t.Context().Done())
	}
	w.violate("tester", "it cannot be done: %q: %v", w.owed, left)
}

// inFlight begins what strikes while calls for rows that were just written are under way: they are slow until it ends.
func (w *world) inFlight(f fault, strike func(fault) (end func())) (end func()) {
	lag := func(by time.Duration) {
		for _, e := range w.endpoints {
			e.lag(by)
		}
	}
	const slow, moment = 300 * time.Millisecond, 500
	lag(slow)
	var mend func()
	if w.fillExtra() {
		pass(time.Duration(20+f.Choice%moment)*time.Millisecond, w.t.Context().Done())
		mend = strike(f)
	}
	if mend == nil {
		lag(0)
		return nil
	}
	return func() {
		lag(0)
		mend()
	}
}

// drain gives the last webhook target up, or the file target if there is one webhook only. It never gets anything again.
func (w *world) drain() (end func()) {
	name := w.plan.Targets[max(1, len(w.plan.Targets)-2)].Name
	if !w.order(`SELECT reconciler.release($1, 'delete')`, name) {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drained = name
	return func() {}
}
