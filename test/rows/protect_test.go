package rows_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

const waiting = `SELECT coalesce(string_agg(key || CASE WHEN wanted THEN ' wanted' ELSE '' END, ',' ORDER BY key), '') FROM reconciler.held WHERE held_by = 'guard'`

// protectFleet tracks a table of the name of its target with n objects, of which those up to protected are protected.
func protectFleet(w *servertest.World, target string, n, protected int) {
	w.T.Helper()
	for _, sql := range []string{
		`CREATE TABLE @ (id int PRIMARY KEY, target text, name text, running boolean NOT NULL DEFAULT true, keep boolean)`,
		fmt.Sprintf(`INSERT INTO @ SELECT i, '@', 'v1', true, i <= %d FROM generate_series(1, %d) AS i`, protected, n),
		`SELECT reconciler.track('@', '@', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', ignore => '{keep}', protect => 'keep')`,
	} {
		w.DB.Exec(w.T, strings.ReplaceAll(sql, "@", target))
	}
}

// Whatever makes an object unwanted, a delete of a protected one waits for approve(): other ones go, and nothing else lets it go.
func TestDeletesOfProtectedObjectsWaitForApproval(t *testing.T) {
	t.Parallel()
	ways := map[string]string{ // of a target, with its table and resource of the same name
		"delete":            `DELETE FROM @`,
		"truncate":          `TRUNCATE @`,
		"not_running":       `UPDATE @ SET running = false`,
		"moved":             `UPDATE @ SET target = 'us'`,
		"other_keys":        `UPDATE @ SET id = id + 100`,
		"unnoticed":         `SET session_replication_role = replica; DELETE FROM @; RESET session_replication_role; SELECT reconciler.resync('@')`,
		"untrack":           `SELECT reconciler.untrack('@', 'delete')`,
		"release":           `SELECT reconciler.release('@', 'delete')`,
		"redefined":         `SELECT reconciler.track('@', '@', '{id}', 'target', running => 'false', spec => 'to_jsonb(name)', protect => 'keep')`,
		"protect_goes_with": `SELECT reconciler.track('@', '@', '{id}', 'target', running => 'false', spec => 'to_jsonb(name)')`,
		"target_forgotten":  `SELECT reconciler.untrack('@', 'delete'); SELECT reconciler.release('@', 'delete')`,
	}
	w := servertest.New(t)
	var targets []servertest.Target
	var waits []string
	places := map[string]*servertest.Place{}
	for _, name := range slices.Sorted(maps.Keys(ways)) {
		protectFleet(w, name, 6, 2)
		places[name] = servertest.NewPlace()
		targets = append(targets, servertest.Named(name, places[name], servertest.Quick, func(c *config.Target) { c.Guard.MaxDeletes = new(1000) }))
		waits = append(waits, name+" 1,2")
	}
	all := func(sql string) {
		for name := range ways {
			w.DB.Exec(t, strings.ReplaceAll(sql, "@", name))
		}
	}
	gone := func(keys ...string) func() bool {
		return func() bool {
			for name, p := range places {
				have := p.Have()
				if slices.ContainsFunc(keys, func(key string) bool { return have[name+"/"+key] != "" }) {
					return false
				}
			}
			return true
		}
	}
	waitAsBefore := func() {
		w.Settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`)
		w.Settled(strings.Join(waits, "; "), `SELECT string_agg(target || ' ' || keys, '; ' ORDER BY target) FROM
			(SELECT target, string_agg(key || CASE WHEN wanted THEN ' wanted' ELSE '' END, ',' ORDER BY key) AS keys FROM reconciler.held WHERE held_by = 'guard' GROUP BY target) AS x`)
	}

	p := w.Start(targets...)
	w.Wait()
	for name, remove := range ways {
		w.DB.Exec(t, strings.ReplaceAll(remove, "@", name))
	}
	w.Eventually("objects that are not protected go", gone("3", "6"))
	waitAsBefore()
	for _, more := range []string{
		`SELECT reconciler.resync('@')`, `SELECT reconciler.retry('@')`, `SELECT reconciler.pause('@')`, `SELECT reconciler.resume('@')`,
		`INSERT INTO reconciler.outbox (resource_id, target, key) SELECT r.id, '@', k FROM reconciler.resources r, unnest('{1,2}'::text[]) AS k WHERE r.name = '@'`,
	} {
		all(more)
		waitAsBefore()
	}
	p.Stop(t)
	w.Start(targets...)
	waitAsBefore()
	for name, p := range places {
		require.Contains(t, p.Have(), name+"/1")
		require.Contains(t, p.Have(), name+"/2")
		require.Regexp(t, `^2 protected deletes of \d+ objects? held since .*; SELECT reconciler.approve\('`+name+`'\);$`, w.Text(`SELECT guard FROM reconciler.status WHERE target = $1`, name))
	}
	require.Equal(t, "waits for approval of its delete: it is protected; SELECT reconciler.approve('delete');", w.Text(`SELECT reason FROM reconciler.held WHERE target = 'delete' AND key = '1'`))

	all(`SELECT reconciler.approve('@')`)
	w.Eventually("they are deleted", gone("1", "2"))
	w.Settled("0", `SELECT count(*)::text FROM reconciler.held`)
	w.Settled("", `SELECT coalesce(string_agg(guard, ''), '') FROM reconciler.status`)
}

// Protected deletes take nothing from the guard's limit, and a batch that it lets pass lets no protected one pass.
func TestGuardDoesNotCountProtectedDeletes(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	protectFleet(w, "eu", 40, 30)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { servertest.Quick(c); c.Guard.MaxDeletes = new(10) }))
	w.Wait()
	w.DB.Exec(t, `DELETE FROM eu`)
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
	protectFleet(w, "eu", 5, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Wait()
	_, before, _ := eu.Snapshot()
	const protected = `SELECT coalesce(string_agg(key, ',' ORDER BY key), '') FROM reconciler.objects WHERE protected`
	require.Empty(t, w.Text(protected))
	w.DB.Exec(t, `UPDATE eu SET keep = true WHERE id = 1; UPDATE eu SET keep = NULL WHERE id = 2`)
	w.Settled("1,2", protected)
	w.DB.Exec(t, `UPDATE eu SET keep = false WHERE id = 1`)
	w.Settled("2", protected)
	w.DB.Exec(t, `SELECT reconciler.track('eu', 'eu', '{id}', 'target', running => 'running', spec => 'to_jsonb(name)', protect => 'id > 3')`)
	w.Settled("4,5", protected)
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before), "no call is made")

	w.DB.Exec(t, `DELETE FROM eu WHERE id > 3`)
	w.Settled("4,5", waiting)
	w.DB.Exec(t, `INSERT INTO eu VALUES (4, 'eu', 'v1'), (5, 'eu', 'v2')`)
	w.Wait()
	w.Settled("", waiting)
	require.Equal(t, `"v2"`, eu.Have()["eu/5"])
	require.Zero(t, eu.Deletes())
	w.DB.Exec(t, `SELECT reconciler.approve('eu'); DELETE FROM eu WHERE id = 4`)
	w.Settled("4", waiting) // the approval of nothing is none for later
}

// A delete waits for approve() if the last row that asked for the object protected it, also if no process read that row.
func TestF138_ProtectionIsThatOfTheLastRow(t *testing.T) {
	t.Parallel()
	ways := map[string][]string{ // transactions
		"delete":          {`UPDATE @ SET keep = id = 2`, `DELETE FROM @`},
		"one_transaction": {`UPDATE @ SET keep = id = 2; DELETE FROM @`},
		"there_and_back":  {`UPDATE @ SET keep = true; UPDATE @ SET keep = id = 2; DELETE FROM @`},
		"came_back":       {`DELETE FROM @; INSERT INTO @ VALUES (1, '@', 'v2', true, false), (2, '@', 'v2', true, true), (3, '@', 'v2', true, false)`, `DELETE FROM @`},
		"in_the_same_row": {`UPDATE @ SET keep = id = 2`, `UPDATE @ SET keep = NOT keep, running = false`},
		"not_running":     {`UPDATE @ SET keep = id = 2`, `UPDATE @ SET running = false`, `UPDATE @ SET keep = true`, `DELETE FROM @`},
		"moved":           {`UPDATE @ SET keep = id = 2`, `UPDATE @ SET target = 'us', keep = NOT keep`},
		"other_keys":      {`UPDATE @ SET keep = id = 2`, `UPDATE @ SET id = id + 100, keep = NOT keep`},
		"truncate":        {`UPDATE @ SET keep = id = 2`, `TRUNCATE @`},
		"untrack":         {`UPDATE @ SET keep = id = 2; DELETE FROM @; SELECT reconciler.untrack('@', 'delete')`},
		"redefined":       {`UPDATE @ SET keep = id = 2`, `SELECT reconciler.track('@', '@', '{id}', 'target', running => 'false', spec => 'to_jsonb(name)', protect => 'keep')`},
	}
	w := servertest.New(t)
	var targets []servertest.Target
	var waits []string
	places := map[string]*servertest.Place{}
	for _, name := range slices.Sorted(maps.Keys(ways)) {
		protectFleet(w, name, 3, 1)
		w.DB.Exec(t, strings.ReplaceAll(`UPDATE @ SET keep = false WHERE id = 3`, "@", name))
		places[name] = servertest.NewPlace()
		targets = append(targets, servertest.Named(name, places[name], servertest.Quick, func(c *config.Target) { c.Guard.MaxDeletes = new(1000) }))
		waits = append(waits, name+" 2")
	}
	p := w.Start(targets...)
	w.Wait()
	p.Stop(t)
	for name, transactions := range ways {
		for _, sql := range transactions {
			w.DB.Exec(t, strings.ReplaceAll(sql, "@", name))
		}
	}
	w.Start(targets...)
	w.Settled(strings.Join(waits, "; "), `SELECT string_agg(target || ' ' || keys, '; ' ORDER BY target) FROM
		(SELECT target, string_agg(key, ',' ORDER BY key) AS keys FROM reconciler.objects WHERE length(key) = 1 GROUP BY target) AS x`)
	require.Equal(t, strings.Join(waits, "; "), w.Text(`SELECT string_agg(target || ' ' || key, '; ' ORDER BY target) FROM reconciler.held WHERE held_by = 'guard'`))
	has := func(name, key string) bool { return places[name].Have()[name+"/"+key] != "" }
	for name := range places {
		require.Equal(t, []bool{false, true, false}, []bool{has(name, "1"), has(name, "2"), has(name, "3")}, name)
		w.DB.Exec(t, `SELECT reconciler.approve($1)`, name)
	}
	for name := range places {
		w.Eventually(name+" is approved", func() bool { return !has(name, "2") })
	}
}

// What a sync has read of a row that was written without triggers is newer than what the outbox has of it.
func TestF138_ASyncKnowsBetterThanAnOlderChange(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	protectFleet(w, "eu", 2, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Wait()
	w.DB.Exec(t, `UPDATE eu SET name = 'v2'`)
	w.Wait()
	w.Silently(`UPDATE eu SET keep = true WHERE id = 1`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("1", `SELECT string_agg(key, ',') FROM reconciler.objects WHERE protected`)
	w.Silently(`DELETE FROM eu`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("1", waiting)
	w.Eventually("the other one goes", func() bool { return len(eu.Have()) == 1 })
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
