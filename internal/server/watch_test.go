package server_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// watched is a place that tells what is changed behind the product's back, while it is watched.
type watched struct {
	listing

	began chan struct{} // a watch has begun

	mu      sync.Mutex // guards what follows
	changed func(resource, key string)
	running int
	broken  func() error // ends a watch at once; nil: it goes on
}

func newWatched() *watched {
	return &watched{listing: listing{newPlace()}, began: make(chan struct{}, 1000)}
}

func (p *watched) Watch(ctx context.Context, changed func(resource, key string)) error {
	p.mu.Lock()
	if broken := p.broken; broken != nil {
		p.mu.Unlock()
		return broken()
	}
	p.changed = changed
	p.running++
	p.mu.Unlock()
	p.began <- struct{}{}
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	p.changed = nil
	return context.Cause(ctx)
}

func (p *watched) breaks(how func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = how
}

func (p *watched) watches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// name names an object as changed, if the place is watched.
func (p *watched) name(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if resource, key, _ := cut(id); p.changed != nil {
		p.changed(resource, key)
	}
}

// edit changes an object behind the product's back.
func (p *watched) edit(id, spec string) {
	p.put(id, spec)
	p.name(id)
}

// watchFleet starts a server with a target that is watched and has n objects.
func (w *world) watchFleet(n int, change ...func(*config.Target)) (*watched, map[string]string) {
	w.t.Helper()
	want, eu := w.fleet(n), newWatched()
	w.start(named("eu", eu, change...))
	<-eu.began
	eu.eventually(w.t, want)
	w.wait()
	w.settled("0", unfinished)
	return eu, want
}

const (
	unfinished = `SELECT count(*)::text FROM reconciler.sync_runs WHERE state NOT IN ('complete', 'failed')`
	syncs      = `SELECT count(*)::text FROM reconciler.sync_runs`
)

func TestEditIsRepairedWithoutASync(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, want := w.watchFleet(5)
	before := w.text(syncs)
	eu.edit("app/1", `"edited by hand"`)
	eu.edit("app/2", "")
	eu.eventually(t, want)
	w.converged()
	require.Equal(t, before, w.text(syncs))
	require.EqualValues(t, 2, w.series("watch_events_total"))
}

func TestEditWaitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, want := w.watchFleet(2)
	w.db.Exec(t, `SELECT reconciler.pause('eu')`)
	changes := 0
	w.eventually("the owner has read that the target is paused", func() bool {
		changes++
		w.db.Exec(t, `UPDATE apps SET image = $1 WHERE id = 2`, strconv.Itoa(changes))
		return w.text(`SELECT held_by FROM reconciler.objects WHERE key = '2'`) == "pause"
	})
	want["app/2"] = strconv.Quote(strconv.Itoa(changes))
	_, before, _ := eu.snapshot()
	eu.edit("app/1", `"edited by hand"`)
	w.settled("pause", `SELECT held_by FROM reconciler.objects WHERE key = '1'`)
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before))
	w.db.Exec(t, `SELECT reconciler.resume('eu')`)
	eu.eventually(t, want)
	w.converged()
}

// The same holds for what a sync finds during a pause.
func TestDriftWaitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	want, eu := w.fleet(2), newPlace()
	w.start(named("eu", listing{eu}))
	eu.eventually(t, want)
	w.wait()
	w.db.Exec(t, `SELECT reconciler.pause('eu')`)
	eu.put("app/1", `"edited by hand"`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.settled("1 pause", `SELECT key || ' ' || held_by FROM reconciler.objects WHERE state = 'held'`)
	w.db.Exec(t, `SELECT reconciler.resume('eu')`)
	eu.eventually(t, want)
	w.converged()
}

func TestEditIsReportedInReportMode(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	want, eu := w.fleet(5), newWatched()
	w.start(named("eu", eu, func(c *config.Target) { c.SyncMode = config.SyncReport }))
	<-eu.began
	w.seen("eu")
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.eventually(t, want)
	w.wait()
	w.settled("0", unfinished)
	_, before, _ := eu.snapshot()
	const drift = `SELECT string_agg(key || ' ' || kind, ', ' ORDER BY key) FROM reconciler.drift`
	eu.edit("app/1", `"edited by hand"`)
	w.settled("1 different", drift)
	eu.edit("app/2", "")
	w.settled("1 different, 2 missing", drift)
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before))
	w.settled("complete watch report", `SELECT state || ' ' || reason || ' ' || mode FROM reconciler.syncs ORDER BY id DESC LIMIT 1`)
	require.Equal(t, "false", w.text(`SELECT reconciler.awaited(s, now())::text FROM reconciler.sync_runs s WHERE reason = 'watch' LIMIT 1`))

	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.eventually(t, want)
}

// TRUNCATE is applied in report mode, too, and what differs without it stays.
func TestSyncOfChangesLeavesDriftInReportMode(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	want, eu := w.fleet(2), newWatched()
	w.start(named("eu", eu, func(c *config.Target) { c.SyncMode = config.SyncReport }))
	w.seen("eu")
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.eventually(t, want)
	w.wait()
	w.settled("0", unfinished)
	eu.put("app/1", `"edited by hand"`)
	w.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, mode, verify)
		SELECT t.id, r.id, 'resource', 'repair', true FROM reconciler.targets t, reconciler.resources r`)
	w.db.Exec(t, control)
	w.settled("complete resource rows=2 upserts=0 tombstones=0 drifted=0 held=0", lastSync)
	require.Equal(t, `"edited by hand"`, eu.have()["app/1"])
}

// A sync that a watch asks for gives way to any other one of the resource, which then looks at the target, too.
func TestSyncOfAWatchJoinsOthers(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	w.db.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('eu')`)
	queries, ctx := store.New(w.db.Pool), t.Context()
	const waiting = `SELECT string_agg(concat_ws(' ', reason, mode, verify), ', ') FROM reconciler.sync_runs`
	watch := store.SyncListParams{TargetID: 1, ResourceID: 1, Reason: "watch", Mode: "report"}
	change := store.SyncRequestParams{TargetID: 1, ResourceID: 1, Reason: "resource", Mode: "repair"}
	for range 2 {
		require.NoError(t, queries.SyncList(ctx, watch))
		require.Equal(t, "watch report t", w.text(waiting))
	}
	require.NoError(t, queries.SyncRequest(ctx, change))
	require.Equal(t, "resource repair t", w.text(waiting))
	w.db.Exec(t, `DELETE FROM reconciler.sync_runs`)
	require.NoError(t, queries.SyncRequest(ctx, change))
	require.NoError(t, queries.SyncList(ctx, watch))
	require.Equal(t, "resource repair t", w.text(waiting))
	watch.ResourceID = 99
	require.NoError(t, queries.SyncList(ctx, watch))
	require.Equal(t, "1", w.text(syncs))
}

// An object that the ledger does not know is a sync's to find, which counts deletes.
func TestOrphanThatIsNamedIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, want := w.watchFleet(3)
	eu.edit("app/stray", `"nobody wants me"`)
	eu.edit("app/", "x")
	eu.edit("nothing/1", "x")
	eu.name("app/" + strings.Repeat("x", 3000))
	eu.edit("app/1", `"edited by hand"`)
	want["app/stray"], want["app/"], want["nothing/1"] = `"nobody wants me"`, "x", "x"
	eu.eventually(t, want)
	_, calls, _ := eu.snapshot()
	for _, c := range calls {
		require.Equal(t, "apply", c.Action)
	}
	require.EqualValues(t, 1, w.series("watch_events_total"))
	require.Equal(t, "3", w.text(`SELECT count(*)::text FROM reconciler.ledger`))
}

// What fails or is blocked is tried again when its turn has come.
func TestObjectThatIsNamedKeepsItsTurn(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, _ := w.watchFleet(4)
	eu.set(func(_ context.Context, c call) driver.Outcome {
		switch c.Spec {
		case `"fails"`:
			return driver.RetryAfter(deadline*10, refused)
		case `"waits"`:
			return driver.Waiting(deadline*10, "not yet")
		case `"never"`:
			return driver.Terminal(refused)
		}
		return driver.Done()
	})
	w.db.Exec(t, `UPDATE apps SET image = CASE id WHEN 1 THEN 'fails' WHEN 2 THEN 'waits' ELSE 'never' END WHERE id < 4`)
	const states = `SELECT string_agg(state::text, ', ' ORDER BY key) FROM reconciler.ledger`
	w.settled("failing, pending, blocked, applied", states)
	_, before, _ := eu.snapshot()
	for _, id := range []string{"app/1", "app/2", "app/3"} {
		eu.edit(id, "")
	}
	eu.edit("app/4", "")
	w.eventually("what is applied is repaired", func() bool { return eu.have()["app/4"] == `"v1"` })
	_, after, _ := eu.snapshot()
	require.Len(t, after, len(before)+1)
	require.Equal(t, "failing, pending, blocked, applied", w.text(states))
}

// A watch that fails costs speed only: nothing waits for it, and the process stays ready. It is seen, and begins again.
func TestWatchThatFailsIsSeenAndBeginsAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks       func() error
		error, inLog string
	}{
		"WithAnError": {func() error { return errors.New("no watch here") }, "no watch here", "msg=loop_failing loop=watch target=eu"},
		"WithNone":    {func() error { return nil }, "the watch ended without an error", "msg=loop_failing loop=watch target=eu"},
		"WithAPanic":  {func() error { panic("no watch here") }, "the driver panicked: no watch here", "watch_test.go"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := withApps(t)
			want, eu := w.fleet(3), newWatched()
			eu.breaks(c.breaks)
			w.startWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, named("eu", eu))
			w.settled("watch: "+c.error, `SELECT loop || ': ' || error FROM reconciler.failing_loops`)
			w.wait()
			eu.eventually(t, want)
			w.settled("error", `SELECT state FROM reconciler.status`)
			require.Regexp(t, "^watch of .+ has been failing since .+: "+c.error+"$", w.text(`SELECT last_error FROM reconciler.status`))
			w.settled("1", `SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND finding LIKE '%watch of target eu%'`)
			require.NotZero(t, w.series("loop_failures_total", "watch"))
			require.NotEmpty(t, w.logged(c.inLog))
			w.eventually("it is ready", func() bool { return w.ready() == "200 ok" })
			eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(refused) })
			w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
			w.settled("failing", `SELECT state FROM reconciler.status`) // that is more urgent
			eu.set(nil)
			w.db.Exec(t, `UPDATE apps SET image = 'v1' WHERE id = 3`)
			w.wait()

			eu.breaks(nil)
			<-eu.began
			eu.edit("app/1", `"edited by hand"`)
			eu.eventually(t, want)
			w.settled("", `SELECT string_agg(loop, ', ') FROM reconciler.failing_loops`)
			w.settled("ok", `SELECT state FROM reconciler.status`)
		})
	}
}

// Only the owner watches.
func TestWatchMovesWithTheTarget(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	want, eu := w.fleet(3), newPlace()
	first, second := newWatched(), newWatched()
	first.place, second.place = eu, eu
	p := w.start(named("eu", first))
	<-first.began
	w.start(named("eu", second))
	eu.eventually(t, want)
	w.settled("2", `SELECT count(*)::text FROM reconciler.instances`)
	require.Zero(t, second.watches())
	p.stop(t)
	require.Zero(t, first.watches())
	<-second.began
	second.edit("app/1", `"edited by hand"`)
	eu.eventually(t, want)
}

// What is named while there is no room is left to a sync, which is requested.
func TestFloodOfNamesNeitherBlocksNorIsForgotten(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, want := w.watchFleet(20)
	const byWatch = `SELECT count(*)::text FROM reconciler.syncs WHERE reason = 'watch' AND verify AND mode = 'repair'`
	w.eventually("a sync is requested", func() bool {
		for i := range 100_000 {
			eu.name(fmt.Sprintf("app/%d", 100_020-i)) // none that the target has
		}
		return w.text(byWatch) != "0"
	})
	for i := range 100_000 {
		eu.name(fmt.Sprintf("app/%d", 100_020-i))
	}
	for i := range 20 {
		eu.edit(fmt.Sprintf("app/%d", i+1), "")
	}
	eu.eventually(t, want)
	w.converged()
}

// A call that the target names as a change of its own leads to some more calls, and not to calls without end.
func TestCallsThatNameThemselvesEnd(t *testing.T) {
	t.Parallel()
	w := withApps(t)
	eu, want := w.watchFleet(2)
	eu.set(func(_ context.Context, c call) driver.Outcome {
		eu.name(c.id())
		return driver.Done()
	})
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.eventually("it is noticed", func() bool { return len(w.logged("msg=object_keeps_changing")) > 0 })
	want["app/1"] = `"v2"`
	eu.eventually(t, want)
	require.Contains(t, w.logged("msg=object_keeps_changing")[0], `target=eu resource=app key=1 effect="it is repaired less and less often"`)
}
