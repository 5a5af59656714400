package server_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// gate makes calls wait until they are let through.
type gate struct {
	arrived chan call
	open    chan struct{}
	once    sync.Once
}

// shut puts a gate before the calls for which is says so (nil: all).
func (p *place) shut(t *testing.T, is func(call) bool) *gate {
	t.Helper()
	g := &gate{arrived: make(chan call, 1000), open: make(chan struct{})}
	t.Cleanup(g.lift)
	p.set(func(ctx context.Context, c call) driver.Outcome {
		if is != nil && !is(c) {
			return driver.Done()
		}
		select {
		case g.arrived <- c:
		default: // nobody will ask for so many
		}
		select {
		case <-g.open:
			return driver.Done()
		case <-ctx.Done():
			return driver.Backoff(context.Cause(ctx))
		}
	})
	return g
}

// lift lets everything through from now on.
func (g *gate) lift() { g.once.Do(func() { close(g.open) }) }

// next waits for a call that waits.
func (g *gate) next(t *testing.T) call {
	t.Helper()
	select {
	case c := <-g.arrived:
		return c
	case <-time.After(deadline):
		require.FailNow(t, "no call came")
		return call{}
	}
}

// begin opens a transaction that is rolled back at the end of the test if nothing else becomes of it.
func (w *world) begin() pgx.Tx {
	w.t.Helper()
	tx, err := w.db.Conn(w.t).Begin(context.Background())
	require.NoError(w.t, err)
	return tx
}

// unsettled keeps the results of calls from the ledger, as long as its transaction is open.
const unsettled = `LOCK TABLE reconciler.ledger IN SHARE MODE`

func (w *world) in(tx pgx.Tx, sql string) {
	w.t.Helper()
	_, err := tx.Exec(context.Background(), sql)
	require.NoError(w.t, err)
}

func (w *world) commit(tx pgx.Tx) {
	w.t.Helper()
	require.NoError(w.t, tx.Commit(context.Background()))
}

// seen waits until every committed change has been read and settled, or waits in the ledger, for a target.
func (w *world) seen(target string) {
	w.t.Helper()
	w.eventually("the cursor of "+target+" covers everything", func() bool {
		return w.text(`SELECT (c.revision >= reconciler.covering_revision(pg_current_snapshot()))::text FROM reconciler.target_cursors c WHERE c.target = $1`, target) == "true"
	})
}

// C20, I9: many rows in one transaction, 50,000 in the long tier. While it is open others arrive at once; when it is committed another target is
// not held up, and memory stays bounded: never more objects in hand than the queue holds.
func TestLargeTransaction(t *testing.T) {
	t.Parallel()
	w := holding(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency = 16 }), named("us", us))
	w.wait()
	rows := 10_000 // more than the queue holds
	if pgtest.Long {
		rows = 50_000
	}
	open := w.begin()
	w.in(open, fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu', 'big' FROM generate_series(1, %d) AS i`, rows))
	w.db.Exec(t, `INSERT INTO apps VALUES (0, 'eu', 'small'), (-1, 'us', 'small')`)
	eu.eventually(t, map[string]string{"app/0": `"small"`})
	us.eventually(t, map[string]string{"app/-1": `"small"`})

	g := eu.shut(t, nil)
	w.commit(open)
	g.next(t)
	w.db.Exec(t, `INSERT INTO apps VALUES (-2, 'us', 'meanwhile')`)
	us.eventually(t, map[string]string{"app/-1": `"small"`, "app/-2": `"meanwhile"`})
	// Nothing is settled: when the queue is full nothing more is read.
	w.eventually("the queue is full", func() bool {
		w.db.Exec(t, `SELECT pg_notify('reconciler_control', '')`)
		return w.series("queued", "eu", "live") == 8192
	})
	require.LessOrEqual(t, w.series("in_flight", "eu"), 1000.0)
	g.lift()
	w.eventually("everything is applied", func() bool { return eu.size() == rows+1 })
	w.converged()
	_, calls, _ := eu.snapshot()
	require.Len(t, calls, rows+1, "each object is called once")
}

// C22, C32, I3: changes of an object that is being applied lead to one further call, with the last state.
func TestChangesDuringACallLeadToOneMore(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 1)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	_, before, _ := eu.snapshot()
	g := eu.shut(t, nil)
	w.db.Exec(t, `UPDATE apps SET image = 'first' WHERE id = 1`)
	require.Equal(t, `"first"`, g.next(t).Spec)
	for i := range 20 {
		w.db.Exec(t, `UPDATE apps SET image = $1 WHERE id = 1`, fmt.Sprintf("update %d", i))
	}
	require.Empty(t, g.arrived, "never twice at once")
	g.lift()
	eu.eventually(t, map[string]string{"app/1": `"update 19"`})
	w.converged()
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before)+2)
}

// A row that goes while it is applied is deleted afterwards; one that comes back while it is deleted is applied.
func TestRowsThatComeAndGoDuringACall(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	eu := newPlace()
	g := eu.shut(t, func(c call) bool { return c.Action == "apply" })
	w.start(named("eu", eu))
	g.next(t)
	w.db.Exec(t, `DELETE FROM apps`)
	g.lift()
	eu.until(t, func(objects map[string]string, calls []call) bool {
		return len(objects) == 0 && len(calls) > 0 && calls[len(calls)-1].Action == "delete"
	}, func() string { return "it was not deleted" })

	eu.set(nil)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'back')`)
	eu.eventually(t, map[string]string{"app/1": `"back"`})
	g = eu.shut(t, func(c call) bool { return c.Action == "delete" })
	w.db.Exec(t, `DELETE FROM apps`)
	g.next(t)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'again')`)
	g.lift()
	eu.eventually(t, map[string]string{"app/1": `"again"`})
	w.converged()
}

// I4: an object whose call takes long keeps neither other objects nor the cursor from going on; its own result counts when
// it comes.
func TestSlowCallHoldsNothingElse(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 50)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	g := eu.shut(t, func(c call) bool { return c.Key == "1" })
	w.db.Exec(t, `UPDATE apps SET image = 'slow' WHERE id = 1`)
	g.next(t)
	want = maps.Clone(want)
	for i := 2; i <= 50; i++ {
		w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = $1`, i)
		want[fmt.Sprintf("app/%d", i)] = `"v2"`
	}
	eu.eventually(t, want)
	w.seen("eu")
	require.Equal(t, "pending true true", w.text(`SELECT concat_ws(' ', state, wanted::text, present::text) FROM reconciler.objects WHERE key = '1'`))
	g.lift()
	want["app/1"] = `"slow"`
	eu.eventually(t, want)
	w.converged()
}

// I1: a change comes during a slow call, and the cursor passes both. That the call is recorded does not make the object one
// that is as wanted: the change is still to be worked on.
func TestChangeDuringASlowCallIsNotForgottenWithIt(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 1)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	apply, remove := make(chan struct{}), make(chan struct{})
	arrived := make(chan string, 10)
	eu.set(func(ctx context.Context, c call) driver.Outcome {
		arrived <- c.Action
		open := map[string]chan struct{}{"apply": apply, "delete": remove}[c.Action]
		select {
		case <-open:
			return driver.Done()
		case <-ctx.Done():
			return driver.Backoff(context.Cause(ctx))
		}
	})
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	require.Equal(t, "apply", <-arrived)
	w.db.Exec(t, `DELETE FROM apps`)
	w.seen("eu")
	close(apply)
	require.Equal(t, "delete", <-arrived)
	require.Equal(t, "pending true true", w.text(`SELECT concat_ws(' ', state, wanted::text, present::text) FROM reconciler.objects`))
	close(remove)
	w.converged()
}

// Objects that wait for their turn for so long that they are recorded as in hand have not been called: when their rows go
// meanwhile there is nothing to delete, and the ledger forgets them.
func TestWhatWasNeverCalledIsNotDeleted(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 0)
	eu := newPlace()
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency = 4 }))
	w.wait()
	g := eu.shut(t, nil)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 100) AS i`)
	w.eventually("all are recorded as in hand", func() bool {
		return w.text(`SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`) == "100"
	})
	called := map[string]bool{}
	for range 4 {
		called[g.next(t).Key] = true
	}
	w.db.Exec(t, `DELETE FROM apps`)
	g.lift()
	w.converged()
	_, calls, _ := eu.snapshot()
	require.Len(t, calls, 2*len(called))
	for _, c := range calls {
		require.True(t, called[c.Key], "%s of %s, which had not been called when its row went", c.Action, c.Key)
	}
	require.Equal(t, "0", w.text(`SELECT count(*)::text FROM reconciler.objects`))
}

// I9: objects that were recorded as in hand count for the guard once they are applied: a target that was slow at first is
// not taken for empty.
func TestGuardKnowsASlowTarget(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 0)
	eu := newPlace()
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency = 16 }))
	w.wait()
	g := eu.shut(t, nil)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, 100) AS i`)
	w.eventually("all are recorded as in hand", func() bool {
		return w.text(`SELECT count(*)::text FROM reconciler.objects WHERE state = 'pending'`) == "100"
	})
	g.lift()
	w.converged()
	w.db.Exec(t, `DELETE FROM apps WHERE id <= 20`) // a fifth, and more than the ten that always pass
	w.converged()
	w.db.Exec(t, `DELETE FROM apps WHERE id <= 40`)
	w.eventually("a fifth more within a minute is held", func() bool { return w.text(`SELECT guard_deletes::text FROM reconciler.targets`) == "20" })
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.converged()
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
			w := setup(t)
			for _, statement := range c.statements {
				w.db.Exec(t, statement)
			}
			eu := newPlace()
			w.start(named("eu", eu))
			w.eventually("the target is registered", func() bool { return w.text(`SELECT bool_or(configured)::text FROM reconciler.targets`) == "true" })
			eu.eventually(t, c.want)
			w.converged()
			_, calls, _ := eu.snapshot()
			require.Len(t, calls, len(c.want))
			if len(c.statements) == 0 {
				w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY)`)
				w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''')`)
			}
			if strings.HasPrefix(name, "No") {
				w.db.Exec(t, `INSERT INTO apps VALUES (7)`)
				eu.eventually(t, map[string]string{"app/7": `{"id": 7}`})
				w.converged()
			}
		})
	}
}
