package rows_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

var errRefused = errors.New("connection refused")

// charged counts objects that were charged with a failed attempt.
const charged = `SELECT count(*)::text FROM reconciler.objects WHERE attempts > 0 OR last_error IS NOT NULL`

// checking is a place that can say whether it answers.
type checking struct{ *servertest.Place }

func (c checking) Check(ctx context.Context) error {
	return c.Call(ctx, servertest.Call{Action: "check"}).Err
}

// C29: a target that is down is one fact: the circuit opens, status says so in one line, no object is charged, next to
// nothing is called. When it is back everything is applied, with no more calls at once than it may get.
func TestTargetThatIsDown(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]func(*servertest.Place) driver.Driver{
		"WithoutCheck": func(p *servertest.Place) driver.Driver { return p }, "WithCheck": func(p *servertest.Place) driver.Driver { return checking{p} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 200)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", drv(eu)))
			eu.Eventually(t, want)
			w.Wait()

			var down atomic.Bool
			var now, most, calls atomic.Int32
			down.Store(true)
			eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
				n := now.Add(1)
				defer now.Add(-1)
				for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
				}
				if down.Load() {
					calls.Add(1)
					return driver.Unreachable(errRefused)
				}
				if c.Action == "check" {
					return driver.Done()
				}
				<-time.After(time.Millisecond)
				return driver.Done()
			})
			changed := time.Now()
			w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
			w.Eventually("status says so", func() bool { return w.Text(`SELECT state FROM reconciler.status`) == "down" })
			require.Regexp(t, `^does not answer since .*: connection refused$`, w.Text(`SELECT circuit FROM reconciler.status`))
			require.EqualValues(t, 1, w.Series("circuit_open", "eu"))
			w.Eventually("it is probed", func() bool { return calls.Load() >= 5 })
			made, probes := calls.Load(), int32(time.Since(changed)/(500*time.Millisecond)) // at most, the first two come after a second each
			require.LessOrEqual(t, made, 4+3+probes, "calls that were under way, those that opened the circuit, and probes")
			require.Equal(t, "0", w.Text(charged))
			require.Len(t, w.Logged("target_down"), 1)

			down.Store(false)
			for id := range want {
				want[id] = `"v2"`
			}
			eu.Eventually(t, want)
			w.Converged()
			require.LessOrEqual(t, most.Load(), int32(4))
			require.Equal(t, "0", w.Text(charged))
			require.Equal(t, "ok", w.Text(`SELECT state FROM reconciler.status`))
			require.Zero(t, w.Series("circuit_open", "eu"))
			require.Len(t, w.Logged("target_back"), 1)
		})
	}
}

// I1: a target that swallows every call is down too. When it answers again it is found, though nothing is in the queue
// but what the ledger says is due; and objects that need no call do not use up the probes.
func TestTargetThatSwallowedCallsIsFoundAgain(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 300)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) {
		c.Timeout, c.Backoff = 100*time.Millisecond, config.Backoff{Min: 20 * time.Millisecond, Max: 50 * time.Millisecond}
	}))
	eu.Eventually(t, want)
	w.Wait()
	eu.Set(func(ctx context.Context, _ servertest.Call) driver.Outcome {
		<-ctx.Done()
		return driver.Backoff(ctx.Err())
	})
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.Eventually("status says so", func() bool { return w.Text(`SELECT state FROM reconciler.status`) == "down" })
	require.Regexp(t, `every call times out: timed out after 100ms$`, w.Text(`SELECT circuit FROM reconciler.status`))
	// Events of objects that are as they should be.
	w.DB.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'eu', i::text FROM reconciler.resources r, generate_series(2, 300) AS i`)
	eu.Set(nil)
	want["app/1"] = `"v2"`
	eu.Eventually(t, want)
	w.Converged()
	require.Equal(t, "ok", w.Text(`SELECT state FROM reconciler.status`))
}

// One object that always times out among others that do not is no target that is down.
func TestOneObjectThatTimesOutOpensNoCircuit(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 50)
	eu := servertest.NewPlace()
	eu.Set(func(ctx context.Context, c servertest.Call) driver.Outcome {
		if c.Key == "1" {
			<-ctx.Done()
			return driver.Backoff(ctx.Err())
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Timeout = 100 * time.Millisecond }))
	delete(want, "app/1")
	eu.Eventually(t, want)
	for i := range 15 {
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id > 1`, fmt.Sprintf("turn %d", i))
		for id := range want {
			want[id] = fmt.Sprintf("%q", fmt.Sprintf("turn %d", i))
		}
		eu.Eventually(t, want)
	}
	w.Eventually("it has timed out several times", func() bool {
		return w.Text(`SELECT (attempts >= 5)::text FROM reconciler.objects WHERE key = '1'`) == "true"
	})
	require.Empty(t, w.Logged("target_down"))
}

// A circuit that a former owner left open is not shown when the target answers.
func TestOpenCircuitDoesNotOutliveItsOwner(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Unreachable(errRefused) })
	p := w.Start(servertest.Named("eu", eu))
	w.Eventually("status says so", func() bool { return w.Text(`SELECT state FROM reconciler.status`) == "down" })
	p.Stop(t)
	eu.Set(nil)
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Converged()
	require.Equal(t, "ok", w.Text(`SELECT state FROM reconciler.status`))
	require.Empty(t, w.Logged("call_failed"))
}

// C34 with a target that is down: a stop does not wait for it.
func TestStopDoesNotWaitForATargetThatIsDown(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 100)
	eu := servertest.NewPlace()
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Unreachable(errRefused) })
	p := w.Start(servertest.Named("eu", eu))
	w.Eventually("status says so", func() bool { return w.Text(`SELECT state FROM reconciler.status`) == "down" })
	p.Stop(t)
	require.Equal(t, "true", w.Text(`SELECT (clean AND owner IS NULL)::text FROM reconciler.targets`))
	require.Equal(t, "0", w.Text(charged))
}

// C34: a stop lets calls in flight end and records them; what has not begun is left to the next owner, and nothing is
// counted as failed.
func TestStopDrains(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 100)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	inFlight := map[string]bool{}
	for range 4 {
		inFlight[g.Next(t).ID()] = true
	}
	p.Cancel()
	w.Eventually("no call begins any more", func() bool { return len(w.Logged("target_draining")) == 1 })
	g.Lift()
	p.Stop(t)
	want = maps.Clone(want)
	for id := range inFlight {
		want[id] = `"v2"`
	}
	require.Equal(t, want, eu.Have())
	require.Equal(t, "0", w.Text(charged))
	require.Equal(t, "true", w.Text(`SELECT (clean AND owner IS NULL)::text FROM reconciler.targets`))
	require.Equal(t, fmt.Sprint(len(inFlight)), w.Text(`SELECT count(*)::text FROM reconciler.ledger WHERE applied_hash = substr(sha256('"v2"'), 1, 16)`), "what was called is recorded")

	_, before, _ := eu.Snapshot()
	w.Start(servertest.Named("eu", eu))
	for id := range want {
		want[id] = `"v2"`
	}
	eu.Eventually(t, want)
	w.Converged()
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before)+96, "what was recorded is not called again")
}

// A stop that takes too long cuts its calls; they count for nothing.
func TestStopThatTakesTooLongCutsItsCalls(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	cut := eu.Shut(t, nil)
	p := w.StartWith(func(c *config.Config) { c.ShutdownTimeout = 100 * time.Millisecond }, servertest.Named("eu", eu))
	cut.Next(t)
	p.Cancel()
	require.ErrorContains(t, <-p.Done, "draining took longer than shutdown_timeout")
	require.Equal(t, "0", w.Text(charged))
	eu.Set(nil)
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, want)
	w.Converged()
}
