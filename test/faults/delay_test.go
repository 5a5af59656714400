package faults_test

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// A change that comes alone is called for at once; the slow poll, which finds what everything else has missed, takes up to
	// 5 s. The median of some changes is compared: a busy machine may be late with one.
	delayMost    = 2500 * time.Millisecond
	delayChanges = 5
	delayLongest = pgtest.Patience // then nothing comes of it
	// soonAsleep is when the leader has gone to sleep, if no transaction is open.
	soonAsleep = 600 * time.Millisecond
	// crowded is for how long commits come one after the other, so that the leader wants no NOTIFY for each.
	crowded = 300 * time.Millisecond
)

// lookForDelay makes single changes while nothing else happens, and waits for the call of each. In half of the worlds the
// change was made while many others were, and is committed when they are long over: whoever was awake then has gone to
// sleep, and its writer has seen nobody asleep whom it would have to wake.
func (w *world) lookForDelay() {
	x := w.newWriter(len(w.plan.Targets)+w.plan.Writers+1, nil)
	ctx := context.WithoutCancel(w.t.Context())
	defer x.finish(ctx)
	probe := object{w.plan.Targets[0].Name, "num", fmt.Sprint(probeKeys)}
	change := x.changeAtRest
	if w.plan.Honest {
		change = x.changeFromACrowd
	}
	var took []time.Duration
	for range delayChanges {
		commit, err := change(ctx)
		before := w.journal.length()
		if err == nil {
			err = commit()
		}
		if err != nil {
			w.violate("tester", "write at rest: %v", err)
			return
		}
		begun := time.Now()
		for !w.journal.has(probe, before) && time.Since(begun) < delayLongest {
			pass(5*time.Millisecond, w.t.Context().Done())
		}
		took = append(took, time.Since(begun))
		if time.Since(begun) >= delayLongest {
			w.violate("I1 rest", "a change is not called for within %s", delayLongest)
			return
		}
	}
	w.note("at rest a change (from a crowd: %v) is called for after %v", w.plan.Honest, took)
	slices.Sort(took)
	if took[len(took)/2] > delayMost && timed() {
		w.violate("wake-up", "at rest a change (from a crowd: %v) is called for after %v", w.plan.Honest, took)
	}
	if code, said := w.waitAtRest(); code != 0 {
		w.violate("I1 rest", "it does not come to rest again: %s", clip(said))
	}
}

// changeAtRest returns what makes a change, when nothing happens any more.
func (x *writer) changeAtRest(ctx context.Context) (commit func() error, err error) {
	pass(soonAsleep, ctx.Done())
	return func() error { return x.touch(ctx, 0) }, nil
}

// changeFromACrowd makes a change together with many others, and returns what commits it, when nothing happens any more.
func (x *writer) changeFromACrowd(ctx context.Context) (commit func() error, err error) {
	if err := x.touch(ctx, 0); err != nil {
		return nil, err
	}
	if err := x.do(ctx, "SET synchronous_commit = off"); err != nil { // a slow disk would make it no crowd
		return nil, err
	}
	for begun := time.Now(); time.Since(begun) < crowded; {
		if err := x.touch(ctx, 0); err != nil {
			return nil, err
		}
	}
	if err := x.do(ctx, "BEGIN"); err != nil {
		return nil, err
	}
	if err := x.touch(ctx, 0); err != nil {
		return nil, err
	}
	pass(soonAsleep, ctx.Done())
	return func() error { return x.do(ctx, "COMMIT") }, nil
}

func (x *writer) do(ctx context.Context, sql string) error {
	_, err := x.conn.Exec(ctx, sql)
	return err
}
