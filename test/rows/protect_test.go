package rows_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

const waiting = `SELECT coalesce(string_agg(key || CASE WHEN wanted THEN ' wanted' ELSE '' END, ',' ORDER BY key), '') FROM reconciler.held WHERE held_by = 'guard'`

// protectFleet tracks n objects, of which those up to protected are protected.
func protectFleet(w *servertest.World, n, protected int) (want map[string]string) {
	w.T.Helper()
	w.DB.Exec(w.T, `CREATE TABLE apps (id int PRIMARY KEY, target text, name text, running boolean NOT NULL DEFAULT true, keep boolean)`)
	w.DB.Exec(w.T, `INSERT INTO apps SELECT i, 'eu', 'v1', true, i <= $2 FROM generate_series(1, $1) AS i`, n, protected)
	w.DB.Exec(w.T, `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', ignore => '{keep}', protect => 'keep')`)
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
			w := servertest.New(t)
			protectFleet(w, 6, 2)
			eu := servertest.NewPlace()
			many := func(c *config.Target) { servertest.Quick(c); c.Guard.MaxDeletes = new(1000) }
			p := w.Start(servertest.Named("eu", eu, many))
			w.Wait()
			w.DB.Exec(t, remove)
			gone := func() bool {
				have := eu.Have()
				return have["app/6"] == "" && have["app/3"] == ""
			}
			w.Eventually("objects that are not protected go", gone)
			w.Settled("1,2", waiting)
			for _, more := range []string{
				`SELECT reconciler.resync('eu')`, `SELECT reconciler.retry('eu')`, `SELECT reconciler.pause('eu')`, `SELECT reconciler.resume('eu')`,
				`INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'eu', k FROM reconciler.resources r, unnest('{1,2}'::text[]) AS k`,
			} {
				w.DB.Exec(t, more)
				w.Settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
				w.Settled("1,2", waiting)
			}
			p.Stop(t)
			w.Start(servertest.Named("eu", eu, many))
			w.Settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
			w.Settled("1,2", waiting)
			require.Contains(t, eu.Have(), "app/1")
			require.Contains(t, eu.Have(), "app/2")
			require.Regexp(t, `^2 protected deletes of \d+ objects? held since .*; SELECT reconciler.approve\('eu'\);$`, w.Text(`SELECT guard FROM reconciler.status WHERE target = 'eu'`))
			require.Equal(t, "waits for approval of its delete: it is protected; SELECT reconciler.approve('eu');", w.Text(`SELECT reason FROM reconciler.held WHERE key = '1'`))

			w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
			w.Eventually("they are deleted", func() bool { have := eu.Have(); return have["app/1"] == "" && have["app/2"] == "" })
			w.Settled("", waiting)
			w.Settled("", `SELECT coalesce(string_agg(guard, ''), '') FROM reconciler.status`)
		})
	}
}

// Protected deletes take nothing from the guard's limit, and a batch that it lets pass lets no protected one pass.
func TestGuardDoesNotCountProtectedDeletes(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	protectFleet(w, 40, 30)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { servertest.Quick(c); c.Guard.MaxDeletes = new(10) }))
	w.Wait()
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Eventually("the others go", func() bool { return len(eu.Have()) == 30 })
	w.Settled("30", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard'`)
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Eventually("all go", func() bool { return len(eu.Have()) == 0 })
}

// The row decides as it was when it was last read: also when only a column has changed that the spec does not have, and when track()
// has another expression. NULL protects. A row that comes back ends the hold.
func TestProtectFollowsTheRow(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	protectFleet(w, 5, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Wait()
	_, before, _ := eu.Snapshot()
	const protected = `SELECT coalesce(string_agg(key, ',' ORDER BY key), '') FROM reconciler.objects WHERE protected`
	require.Empty(t, w.Text(protected))
	w.DB.Exec(t, `UPDATE apps SET keep = true WHERE id = 1; UPDATE apps SET keep = NULL WHERE id = 2`)
	w.Settled("1,2", protected)
	w.DB.Exec(t, `UPDATE apps SET keep = false WHERE id = 1`)
	w.Settled("2", protected)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', protect => 'id > 3')`)
	w.Settled("4,5", protected)
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before), "no call is made")

	w.DB.Exec(t, `DELETE FROM apps WHERE id > 3`)
	w.Settled("4,5", waiting)
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'eu', 'v1'), (5, 'eu', 'v2')`)
	w.Wait()
	w.Settled("", waiting)
	require.Equal(t, `"v2"`, eu.Have()["app/5"])
	require.Zero(t, eu.Deletes())
	w.DB.Exec(t, `SELECT reconciler.approve('eu'); DELETE FROM apps WHERE id = 4`)
	w.Settled("4", waiting) // the approval of nothing is none for later
}

// careful is a driver of a target that asks before an object loses what it calls "crown".
type careful struct {
	*servertest.Place

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
	return c.Place.Apply(ctx, obj)
}

func (c *careful) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	if c.asks(ref, "") {
		return driver.Unapproved(errors.New("the crown would be lost"))
	}
	return c.Place.Delete(ctx, ref)
}

// A driver that asks for approval gets it for the spec, or the delete, that it has asked about, once.
func TestDriverAsksForApproval(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, name text); INSERT INTO apps VALUES (1, 'crown')`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(name)')`)
	eu := &careful{Place: servertest.NewPlace()}
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Wait()
	w.DB.Exec(t, `UPDATE apps SET name = 'a'`)
	w.Settled("1 wanted", waiting)
	require.Equal(t, "waits for approval: the crown would be lost; SELECT reconciler.approve('eu');", w.Text(`SELECT reason FROM reconciler.held`))
	calls := eu.calls.Load()
	w.DB.Exec(t, `UPDATE apps SET name = 'a'`)
	w.DB.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, 'eu', '1' FROM reconciler.resources r`)
	require.Len(t, w.Column(`SELECT target FROM reconciler.wait('90s')`), 1) // it returns what is held when all changes were looked at
	require.Equal(t, calls, eu.calls.Load(), "it is not asked again")
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Wait()
	require.Equal(t, map[string]string{"app/1": `"a"`}, eu.Have())
	require.Equal(t, "f f", w.Text(`SELECT concat_ws(' ', approved, protected) FROM reconciler.ledger`))

	w.DB.Exec(t, `UPDATE apps SET name = 'crown'`)
	w.Wait()
	w.DB.Exec(t, `UPDATE apps SET name = 'b'`)
	w.Settled("1 wanted", waiting)
	w.DB.Exec(t, `SELECT reconciler.pause('eu'), reconciler.approve('eu'); UPDATE apps SET name = 'c'; SELECT reconciler.resume('eu')`)
	w.Settled("1 wanted", waiting) // another spec than the one that was approved
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Settled("1", waiting)
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Wait()
	require.Empty(t, eu.Have())
	require.Empty(t, w.Text(waiting))
}
