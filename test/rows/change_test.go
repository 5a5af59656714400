package rows_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// C20, I9: many rows in one transaction, 50,000 in the long tier. While it is open others arrive at once; when it is committed another target is
// not held up, and memory stays bounded: never more objects in hand than the queue holds.
func TestLargeTransaction(t *testing.T) {
	t.Parallel()
	w := servertest.Holding(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 16 }), servertest.Named("us", us))
	w.Wait()
	rows := 10_000 // more than the queue holds
	if pgtest.Long {
		rows = 50_000
	}
	open := w.Begin()
	w.In(open, fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu', 'big' FROM generate_series(1, %d) AS i`, rows))
	w.DB.Exec(t, `INSERT INTO apps VALUES (0, 'eu', 'small'), (-1, 'us', 'small')`)
	eu.Eventually(t, map[string]string{"app/0": `"small"`})
	us.Eventually(t, map[string]string{"app/-1": `"small"`})

	g := eu.Shut(t, nil)
	w.Commit(open)
	g.Next(t)
	w.DB.Exec(t, `INSERT INTO apps VALUES (-2, 'us', 'meanwhile')`)
	us.Eventually(t, map[string]string{"app/-1": `"small"`, "app/-2": `"meanwhile"`})
	// Nothing is settled: when the queue is full nothing more is read.
	w.Eventually("the queue is full", func() bool {
		w.DB.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.Series("queued", "eu", "live") == 8192
	})
	require.LessOrEqual(t, w.Series("in_flight", "eu"), 1000.0)
	g.Lift()
	w.Eventually("everything is applied", func() bool { return eu.Size() == rows+1 })
	w.Converged()
	_, calls, _ := eu.Snapshot()
	require.Len(t, calls, rows+1, "each object is called once")
}

// C22, C32, I3: changes of an object that is being applied lead to one further call, with the last state.
func TestChangesDuringACallLeadToOneMore(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	_, before, _ := eu.Snapshot()
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'first' WHERE id = 1`)
	require.Equal(t, `"first"`, g.Next(t).Spec)
	for i := range 20 {
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id = 1`, fmt.Sprintf("update %d", i))
	}
	require.Empty(t, g.Arrived, "never twice at once")
	g.Lift()
	eu.Eventually(t, map[string]string{"app/1": `"update 19"`})
	w.Converged()
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before)+2)
}

// A row that goes while it is applied is deleted afterwards; one that comes back while it is deleted is applied.
func TestRowsThatComeAndGoDuringACall(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	g := eu.Shut(t, func(c servertest.Call) bool { return c.Action == "apply" })
	w.Start(servertest.Named("eu", eu))
	g.Next(t)
	w.DB.Exec(t, `DELETE FROM apps`)
	g.Lift()
	eu.Until(t, func(objects map[string]string, calls []servertest.Call) bool {
		return len(objects) == 0 && len(calls) > 0 && calls[len(calls)-1].Action == "delete"
	}, func() string { return "it was not deleted" })

	eu.Set(nil)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'back')`)
	eu.Eventually(t, map[string]string{"app/1": `"back"`})
	g = eu.Shut(t, func(c servertest.Call) bool { return c.Action == "delete" })
	w.DB.Exec(t, `DELETE FROM apps`)
	g.Next(t)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'again')`)
	g.Lift()
	eu.Eventually(t, map[string]string{"app/1": `"again"`})
	w.Converged()
}

// I4: an object whose call takes long keeps neither other objects nor the cursor from going on; its own result counts when
// it comes.
func TestSlowCallHoldsNothingElse(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 50)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	g := eu.Shut(t, func(c servertest.Call) bool { return c.Key == "1" })
	w.DB.Exec(t, `UPDATE apps SET image = 'slow' WHERE id = 1`)
	g.Next(t)
	want = maps.Clone(want)
	for i := 2; i <= 50; i++ {
		w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = $1`, i)
		want[fmt.Sprintf("app/%d", i)] = `"v2"`
	}
	eu.Eventually(t, want)
	w.Seen("eu")
	require.Equal(t, "pending true true", w.Text(`SELECT concat_ws(' ', state, wanted::text, present::text) FROM reconciler.objects WHERE key = '1'`))
	g.Lift()
	want["app/1"] = `"slow"`
	eu.Eventually(t, want)
	w.Converged()
}

// I1: a change comes during a slow call, and the cursor passes both. That the call is recorded does not make the object one
// that is as wanted: the change is still to be worked on.
func TestChangeDuringASlowCallIsNotForgottenWithIt(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	apply, remove := make(chan struct{}), make(chan struct{})
	arrived := make(chan string, 10)
	eu.Set(func(ctx context.Context, c servertest.Call) driver.Outcome {
		arrived <- c.Action
		open := map[string]chan struct{}{"apply": apply, "delete": remove}[c.Action]
		select {
		case <-open:
			return driver.Done()
		case <-ctx.Done():
			return driver.Backoff(context.Cause(ctx))
		}
	})
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	require.Equal(t, "apply", <-arrived)
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Seen("eu")
	close(apply)
	require.Equal(t, "delete", <-arrived)
	require.Equal(t, "pending true true", w.Text(`SELECT concat_ws(' ', state, wanted::text, present::text) FROM reconciler.objects`))
	close(remove)
	w.Converged()
}

// Objects that wait for their turn for so long that they are recorded as in hand have not been called: when their rows go
// meanwhile there is nothing to delete, and the ledger forgets them.
func TestWhatWasNeverCalledIsNotDeleted(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 4 }))
	w.Wait()
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 100) AS i`)
	w.Eventually("all are recorded as in hand", func() bool {
		return w.Text(`SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`) == "100"
	})
	called := map[string]bool{}
	for range 4 {
		called[g.Next(t).Key] = true
	}
	w.DB.Exec(t, `DELETE FROM apps`)
	g.Lift()
	w.Converged()
	_, calls, _ := eu.Snapshot()
	require.Len(t, calls, 2*len(called))
	for _, c := range calls {
		require.True(t, called[c.Key], "%s of %s, which had not been called when its row went", c.Action, c.Key)
	}
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.objects`))
}

// I9: objects that were recorded as in hand count for the guard once they are applied: a target that was slow at first is
// not taken for empty.
func TestGuardKnowsASlowTarget(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 16 }))
	w.Wait()
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 100) AS i`)
	w.Eventually("all are recorded as in hand", func() bool {
		return w.Text(`SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`) == "100"
	})
	g.Lift()
	w.Converged()
	w.DB.Exec(t, `DELETE FROM apps WHERE id <= 20`) // a fifth, and more than the ten that always pass
	w.Converged()
	w.DB.Exec(t, `DELETE FROM apps WHERE id <= 40`)
	w.Eventually("a fifth more within a minute is held", func() bool { return w.Text(`SELECT guard_deletes::text FROM reconciler.targets`) == "20" })
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Converged()
}

// C23: nothing is tracked, nothing is there, rows are there already.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statements []string
		want       map[string]string
	}{
		"NothingIsTracked": {nil, map[string]string{}},
		"NoRows":           {[]string{`CREATE TABLE apps (id int PRIMARY KEY)`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`}, map[string]string{}},
		"RowsBeforeTheyWereTracked": {
			[]string{`CREATE TABLE apps (id int PRIMARY KEY)`, `INSERT INTO apps VALUES (1)`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`},
			map[string]string{"app/1": `{"id": 1}`},
		},
		"RowsSinceTheyWereTracked": {
			[]string{`CREATE TABLE apps (id int PRIMARY KEY)`, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`, `INSERT INTO apps VALUES (1), (2)`, `DELETE FROM apps WHERE id = 2`},
			map[string]string{"app/1": `{"id": 1}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := servertest.New(t)
			for _, statement := range c.statements {
				w.DB.Exec(t, statement)
			}
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			w.Eventually("the target is registered", func() bool { return w.Text(`SELECT bool_or(configured)::text FROM reconciler.targets`) == "true" })
			eu.Eventually(t, c.want)
			w.Converged()
			_, calls, _ := eu.Snapshot()
			require.Len(t, calls, len(c.want))
			if len(c.statements) == 0 {
				w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY)`)
				w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`)
			}
			if strings.HasPrefix(name, "No") {
				w.DB.Exec(t, `INSERT INTO apps VALUES (7)`)
				eu.Eventually(t, map[string]string{"app/7": `{"id": 7}`})
				w.Converged()
			}
		})
	}
}
