package rows_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// object says what the ledger knows of an object, in one line; times in whole seconds from now.
const object = `SELECT concat_ws(' ', state, CASE WHEN NOT wanted THEN 'unwanted' END, CASE WHEN NOT present THEN 'absent' END, 'attempts=' || attempts,
	'next=' || round(extract(epoch FROM next_attempt_at - clock_timestamp())), 'error=' || split_part(last_error, E'\n', 1),
	CASE WHEN applied_at IS NOT NULL THEN 'applied' END) FROM reconciler.objects WHERE target = 'eu' AND key = $1`

// C26: every outcome of a call is in the ledger, with its attempts, its next attempt and its reason.
func TestEveryOutcomeIsInTheLedger(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	late := func(o driver.Outcome) func(context.Context) driver.Outcome {
		return func(ctx context.Context) driver.Outcome {
			<-ctx.Done()
			return o
		}
	}
	cases := map[string]struct {
		answer func(ctx context.Context) driver.Outcome
		want   string
	}{
		"1": {func(context.Context) driver.Outcome { return driver.Backoff(refused) }, "failing attempts=1 next=HALF error=refused"},
		"2": {func(context.Context) driver.Outcome { return driver.RetryAfter(2*time.Hour, refused) }, "failing attempts=1 next=HOUR error=refused"},
		"3": {func(context.Context) driver.Outcome { return driver.Terminal(refused) }, "blocked attempts=1 error=refused"},
		"4": {func(context.Context) driver.Outcome { return driver.Terminal(nil) }, "blocked attempts=1 error=the driver gave no reason"},
		"5": {func(context.Context) driver.Outcome { panic("boom") }, "failing attempts=1 next=HALF error=the driver panicked: boom"},
		"6": {late(driver.Backoff(context.DeadlineExceeded)), "failing attempts=1 next=HALF error=timed out after 1s"},
		"7": {late(driver.Done()), "applied attempts=0 applied"},
		"8": {func(context.Context) driver.Outcome { return driver.Done() }, "applied attempts=0 applied"},
	}
	w, want := servertest.Fleet(t, len(cases))
	eu := servertest.NewPlace()
	eu.Set(func(ctx context.Context, called servertest.Call) driver.Outcome { return cases[called.Key].answer(ctx) })
	w.Start(servertest.Named("eu", eu, func(c *config.Target) {
		c.Timeout, c.Backoff, c.Concurrency = time.Second, config.Backoff{Min: 30 * time.Minute, Max: 30 * time.Minute}, len(cases)
	}))
	match := func(line, want string) bool {
		var seconds int
		if _, after, ok := strings.Cut(line, "next="); ok {
			_, err := fmt.Sscanf(after, "%d", &seconds)
			require.NoError(t, err)
		}
		if seconds > 1400 && seconds <= 2160 { // half an hour, a fifth more or less
			line = strings.Replace(line, fmt.Sprintf("next=%d", seconds), "next=HALF", 1)
		}
		if seconds > 3500 && seconds <= 4320 { // driver.RetryAfterMax, up to a fifth more
			line = strings.Replace(line, fmt.Sprintf("next=%d", seconds), "next=HOUR", 1)
		}
		return line == want
	}
	for key, c := range cases {
		w.Eventually(c.want, func() bool { return match(w.Text(object, key), c.want) })
	}
	require.Contains(t, w.Text(`SELECT last_error FROM reconciler.objects WHERE key = '5'`), "goroutine ", "the stack is there")
	require.Contains(t, w.Text(`SELECT last_error FROM reconciler.objects WHERE key = '5'`), "outcome_test.go")

	// Success resets everything; retry() does not wait for the next attempt.
	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
	eu.Eventually(t, want)
	w.Converged()
	for key := range cases {
		require.Equal(t, "applied attempts=0 applied", w.Text(object, key))
	}
}

// C26, C27: an object that fails is tried again when it is due, and no sooner, however long its calls take; what it asks
// for anew is tried at once.
func TestFailingObjectIsTriedWhenItIsDue(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	var calls, early atomic.Int32
	var due atomic.Int64
	eu.Set(func(ctx context.Context, _ servertest.Call) driver.Outcome {
		if time.Now().UnixNano() < due.Load() {
			early.Add(1)
		}
		select { // longer than a look for due objects takes
		case <-time.After(400 * time.Millisecond):
		case <-ctx.Done():
		}
		calls.Add(1)
		due.Store(time.Now().Add(240 * time.Millisecond).UnixNano()) // the shortest jitter of the pause
		return driver.Backoff(errors.New("refused"))
	})
	w.Start(servertest.Named("eu", eu, func(c *config.Target) {
		c.Backoff = config.Backoff{Min: 300 * time.Millisecond, Max: 300 * time.Millisecond}
	}))
	w.Eventually("it is tried again and again", func() bool { return calls.Load() >= 4 })
	require.Zero(t, early.Load())
	require.Equal(t, "failing", w.Text(`SELECT state::text FROM reconciler.objects`))
	eu.Set(nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	eu.Eventually(t, map[string]string{"app/1": `"v2"`})
	w.Converged()
}

// C28, I4: one object that fails for ever keeps nobody else.
func TestOneObjectThatFailsHurtsItselfOnly(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1000)
	eu := servertest.NewPlace()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Key == "500" {
			return driver.Backoff(errors.New("poisoned"))
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu))
	delete(want, "app/500")
	eu.Eventually(t, want)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	for id := range want {
		want[id] = `"v2"`
	}
	eu.Eventually(t, want)
	w.Seen("eu")
	w.Eventually("the ledger says so", func() bool {
		return w.Text(`SELECT string_agg(DISTINCT state || ' ' || coalesce(last_error, ''), ', ') FROM reconciler.objects`) == "applied , failing poisoned"
	})
	require.Equal(t, "999", w.Text(`SELECT count(*)::text FROM reconciler.objects WHERE state = 'applied'`))
	require.Empty(t, w.Text(`SELECT circuit FROM reconciler.status`), "the target answers")
}

// C31, I7: deleting what is absent is success; a delete that fails keeps its ledger row until it is done; a row that comes
// back meanwhile is applied.
func TestDeletes(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 4)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()

	eu.Put("app/1", "")
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 1`)
	delete(want, "app/1")
	w.Converged()

	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Action == "delete" {
			return driver.Backoff(errors.New("locked"))
		}
		return driver.Done()
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE id IN (2, 3)`)
	failing := `SELECT string_agg(concat_ws(' ', key, state, wanted::text, present::text, last_error), ', ' ORDER BY key) FROM reconciler.objects WHERE state <> 'applied'`
	w.Eventually("both deletes fail", func() bool { return w.Text(failing) == "2 failing false true locked, 3 failing false true locked" })
	require.Equal(t, want, eu.Have(), "the target has both still")
	w.DB.Exec(t, `INSERT INTO apps VALUES (3, 'eu', 'back')`)
	want["app/3"] = `"back"`
	eu.Eventually(t, want)
	w.Eventually("one delete fails", func() bool { return w.Text(failing) == "2 failing false true locked" })
	eu.Set(nil)
	delete(want, "app/2")
	eu.Eventually(t, want)
	w.Converged()
}
