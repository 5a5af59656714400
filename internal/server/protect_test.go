package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

const waiting = `SELECT coalesce(string_agg(key || CASE WHEN wanted THEN ' wanted' ELSE '' END, ',' ORDER BY key), '') FROM reconciler.held WHERE held_by = 'guard'`

// protectFleet tracks n objects, of which those up to protected are protected.
func (w *world) protectFleet(n, protected int) (want map[string]string) {
	w.t.Helper()
	w.db.Exec(w.t, `CREATE TABLE apps (id int PRIMARY KEY, target text, name text, running boolean NOT NULL DEFAULT true, keep boolean)`)
	w.db.Exec(w.t, `INSERT INTO apps SELECT i, 'eu', 'v1', true, i <= $2 FROM generate_series(1, $1) AS i`, n, protected)
	w.db.Exec(w.t, `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', ignore => '{keep}', protect => 'keep')`)
	want = map[string]string{}
	for i := range n {
		want[fmt.Sprintf("app/%d", i+1)] = `"v1"`
	}
	return want
}

// Whatever makes an object unwanted, a delete of a protected one waits for approve(): other ones go, and nothing else lets it go.
func TestDeletesOfProtectedObjectsWaitForApproval(t *testing.T) {
	t.Parallel()
	ways := map[string]string{
		"Delete":          `DELETE FROM apps`,
		"Truncate":        `TRUNCATE apps`,
		"NotRunning":      `UPDATE apps SET running = false`,
		"Moved":           `UPDATE apps SET target = 'us'`,
		"OtherKeys":       `UPDATE apps SET id = id + 100`,
		"Unnoticed":       `SET session_replication_role = replica; DELETE FROM apps; RESET session_replication_role; SELECT reconciler.resync('eu')`,
		"Untrack":         `SELECT reconciler.untrack('app', 'delete')`,
		"Release":         `SELECT reconciler.release('eu', 'delete')`,
		"Redefined":       `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'false', spec => 'to_jsonb(name)', protect => 'keep')`,
		"ProtectGoesWith": `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'false', spec => 'to_jsonb(name)')`,
		"TargetForgotten": `SELECT reconciler.untrack('app', 'delete'); SELECT reconciler.release('eu', 'delete')`,
	}
	for name, remove := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.protectFleet(6, 2)
			eu := newPlace()
			many := func(c *config.Target) { quick(c); c.Guard.MaxDeletes = new(1000) }
			p := w.start(named("eu", eu, many))
			w.wait()
			w.db.Exec(t, remove)
			gone := func() bool {
				have := eu.have()
				return have["app/6"] == "" && have["app/3"] == ""
			}
			w.eventually("objects that are not protected go", gone)
			w.settled("1,2", waiting)
			for _, more := range []string{
				`SELECT reconciler.resync('eu')`, `SELECT reconciler.retry('eu')`, `SELECT reconciler.pause('eu')`, `SELECT reconciler.resume('eu')`,
				`INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'eu', k FROM reconciler.resources r, unnest('{1,2}'::text[]) AS k`,
			} {
				w.db.Exec(t, more)
				w.settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
				w.settled("1,2", waiting)
			}
			p.stop(t)
			w.start(named("eu", eu, many))
			w.settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
			w.settled("1,2", waiting)
			require.Contains(t, eu.have(), "app/1")
			require.Contains(t, eu.have(), "app/2")
			require.Regexp(t, `^2 protected deletes of \d+ objects? held since .*; SELECT reconciler.approve\('eu'\);$`, w.text(`SELECT guard FROM reconciler.status WHERE target = 'eu'`))
			require.Equal(t, "waits for approval of its delete: it is protected; SELECT reconciler.approve('eu');", w.text(`SELECT reason FROM reconciler.held WHERE key = '1'`))

			w.db.Exec(t, `SELECT reconciler.approve('eu')`)
			w.eventually("they are deleted", func() bool { have := eu.have(); return have["app/1"] == "" && have["app/2"] == "" })
			w.settled("", waiting)
			w.settled("", `SELECT coalesce(string_agg(guard, ''), '') FROM reconciler.status`)
		})
	}
}

// Protected deletes take nothing from the guard's limit, and a batch that it lets pass lets no protected one pass.
func TestGuardDoesNotCountProtectedDeletes(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.protectFleet(40, 30)
	eu := newPlace()
	w.start(named("eu", eu, func(c *config.Target) { quick(c); c.Guard.MaxDeletes = new(10) }))
	w.wait()
	w.db.Exec(t, `DELETE FROM apps`)
	w.eventually("the others go", func() bool { return len(eu.have()) == 30 })
	w.settled("30", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard'`)
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.eventually("all go", func() bool { return len(eu.have()) == 0 })
}

// The row decides as it was when it was last read: also when only a column has changed that the spec does not have, and when track()
// has another expression. NULL protects. A row that comes back ends the hold.
func TestProtectFollowsTheRow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.protectFleet(5, 0)
	eu := newPlace()
	w.start(named("eu", eu, quick))
	w.wait()
	_, before, _ := eu.snapshot()
	const protected = `SELECT coalesce(string_agg(key, ',' ORDER BY key), '') FROM reconciler.objects WHERE protected`
	require.Empty(t, w.text(protected))
	w.db.Exec(t, `UPDATE apps SET keep = true WHERE id = 1; UPDATE apps SET keep = NULL WHERE id = 2`)
	w.settled("1,2", protected)
	w.db.Exec(t, `UPDATE apps SET keep = false WHERE id = 1`)
	w.settled("2", protected)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', protect => 'id > 3')`)
	w.settled("4,5", protected)
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before), "no call is made")

	w.db.Exec(t, `DELETE FROM apps WHERE id > 3`)
	w.settled("4,5", waiting)
	w.db.Exec(t, `INSERT INTO apps VALUES (4, 'eu', 'v1'), (5, 'eu', 'v2')`)
	w.wait()
	w.settled("", waiting)
	require.Equal(t, `"v2"`, eu.have()["app/5"])
	require.Zero(t, eu.deletes())
	w.db.Exec(t, `SELECT reconciler.approve('eu'); DELETE FROM apps WHERE id = 4`)
	w.settled("4", waiting) // the approval of nothing is none for later
}

// careful is a driver of a target that asks before an object loses what it calls "crown".
type careful struct {
	*place

	crowned atomic.Bool
	calls   atomic.Int64
}

func (c *careful) asks(ref driver.Ref, spec string) bool {
	c.calls.Add(1)
	if spec == `"crown"` {
		c.crowned.Store(true)
	}
	if c.crowned.Load() && spec != `"crown"` && !ref.Approved {
		return true
	}
	c.crowned.Store(spec == `"crown"`)
	return false
}

func (c *careful) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	if c.asks(obj.Ref, string(obj.Spec)) {
		return driver.Unapproved(errors.New("the crown would be lost"))
	}
	return c.place.Apply(ctx, obj)
}

func (c *careful) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	if c.asks(ref, "") {
		return driver.Unapproved(errors.New("the crown would be lost"))
	}
	return c.place.Delete(ctx, ref)
}

// A driver that asks for approval gets it for the spec, or the delete, that it has asked about, once.
func TestDriverAsksForApproval(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, name text); INSERT INTO apps VALUES (1, 'crown')`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(name)')`)
	eu := &careful{place: newPlace()}
	w.start(named("eu", eu, quick))
	w.wait()
	w.db.Exec(t, `UPDATE apps SET name = 'a'`)
	w.settled("1 wanted", waiting)
	require.Equal(t, "waits for approval: the crown would be lost; SELECT reconciler.approve('eu');", w.text(`SELECT reason FROM reconciler.held`))
	calls := eu.calls.Load()
	w.db.Exec(t, `UPDATE apps SET name = 'a'`)
	w.db.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'eu', '1' FROM reconciler.resources r`)
	require.Len(t, w.column(`SELECT target FROM reconciler.wait('90s')`), 1) // it returns what is held when all changes were looked at
	require.Equal(t, calls, eu.calls.Load(), "it is not asked again")
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.wait()
	require.Equal(t, map[string]string{"app/1": `"a"`}, eu.have())
	require.Equal(t, "f f", w.text(`SELECT concat_ws(' ', approved, protected) FROM reconciler.ledger`))

	w.db.Exec(t, `UPDATE apps SET name = 'crown'`)
	w.wait()
	w.db.Exec(t, `UPDATE apps SET name = 'b'`)
	w.settled("1 wanted", waiting)
	w.db.Exec(t, `SELECT reconciler.pause('eu'), reconciler.approve('eu'); UPDATE apps SET name = 'c'; SELECT reconciler.resume('eu')`)
	w.settled("1 wanted", waiting) // another spec than the one that was approved
	w.db.Exec(t, `DELETE FROM apps`)
	w.settled("1", waiting)
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.wait()
	require.Empty(t, eu.have())
	require.Empty(t, w.text(waiting))
}
