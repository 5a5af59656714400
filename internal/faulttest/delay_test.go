package faulttest_test

import (
	"context"
	"fmt"
	"slices"
	"time"
)

const (
	// A change that comes alone is called for at once; the slow poll, which finds what everything else has missed, takes up to
	// 5 s. The median of some changes is compared: a busy machine may be late with one.
	delayMost    = 2500 * time.Millisecond
	delayChanges = 5
	// soonAsleep is when the leader has gone to sleep, if no transaction is open.
	soonAsleep = 600 * time.Millisecond
)

// lookForDelay makes single changes while nothing else happens, and waits for the call of each.
func (w *world) lookForDelay() {
	x := w.newWriter(len(w.plan.Targets)+w.plan.Writers+1, nil)
	ctx := context.WithoutCancel(w.t.Context())
	defer x.finish(ctx)
	probe := object{w.plan.Targets[0].Name, "num", fmt.Sprint(probeKeys)}
	var took []time.Duration
	for range delayChanges {
		pass(soonAsleep, w.t.Context().Done())
		before := w.journal.length()
		if err := x.touch(ctx, 0); err != nil {
			w.violate("tester", "write at rest: %v", err)
			return
		}
		begun := time.Now()
		for !w.journal.has(probe, before) && time.Since(begun) < patience {
			pass(5*time.Millisecond, w.t.Context().Done())
		}
		took = append(took, time.Since(begun))
	}
	w.note("at rest a change is called for after %v", took)
	slices.Sort(took)
	if took[delayChanges/2] > delayMost {
		w.violate("wake-up", "at rest a change is called for after %v", took)
	}
	if code, said := w.wait(30 * time.Second); code != 0 {
		w.violate("I1 rest", "it does not come to rest again: %s", clip(said))
	}
}
