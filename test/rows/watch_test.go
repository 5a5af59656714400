package rows_test

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
	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// watched is a place that tells what is changed behind the product's back, while it is watched.
type watched struct {
	servertest.Listing

	began chan struct{} // a watch has begun
	ends  chan error    // ends the watch

	mu      sync.Mutex // guards what follows
	changed func(resource, key string)
	running int
	broken  func() error // ends a watch at once; nil: it goes on
}

func newWatched() *watched {
	return &watched{Listing: servertest.Listing{Place: servertest.NewPlace()}, began: make(chan struct{}, 1000), ends: make(chan error)}
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
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running--
		p.changed = nil
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-p.ends:
		return err
	}
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
	if resource, key, _ := servertest.Cut(id); p.changed != nil {
		p.changed(resource, key)
	}
}

// edit changes an object behind the product's back.
func (p *watched) edit(id, spec string) {
	p.Put(id, spec)
	p.name(id)
}

// watchFleet starts a server with a target that is watched and has n objects.
func watchFleet(w *servertest.World, n int, change ...func(*config.Target)) (*watched, map[string]string) {
	w.T.Helper()
	want, eu := w.Fleet(n), newWatched()
	w.Start(servertest.Named("eu", eu, change...))
	<-eu.began
	eu.Eventually(w.T, want)
	w.Wait()
	w.Settled("0", unfinished)
	return eu, want
}

const (
	unfinished = `SELECT count(*)::text FROM reconciler.sync_runs WHERE state NOT IN ('complete', 'failed')`
	syncs      = `SELECT count(*)::text FROM reconciler.sync_runs`
)

func TestEditIsRepairedWithoutASync(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 5)
	before := w.Text(syncs)
	eu.edit("app/1", `"edited by hand"`)
	eu.edit("app/2", "")
	eu.Eventually(t, want)
	w.Converged()
	require.Equal(t, before, w.Text(syncs))
	require.EqualValues(t, 2, w.Series("watch_events_total"))
}

func TestEditWaitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 2)
	w.DB.Exec(t, `SELECT reconciler.pause('eu')`)
	changes := 0
	w.Eventually("the owner has read that the target is paused", func() bool {
		changes++
		w.DB.Exec(t, `UPDATE apps SET image = $1 WHERE id = 2`, strconv.Itoa(changes))
		return w.Text(`SELECT held_by FROM reconciler.objects WHERE key = '2'`) == "pause"
	})
	want["app/2"] = strconv.Quote(strconv.Itoa(changes))
	_, before, _ := eu.Snapshot()
	eu.edit("app/1", `"edited by hand"`)
	w.Settled("pause", `SELECT held_by FROM reconciler.objects WHERE key = '1'`)
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before))
	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	eu.Eventually(t, want)
	w.Converged()
}

// The same holds for what a sync finds during a pause.
func TestDriftWaitsForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	want, eu := w.Fleet(2), servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	eu.Eventually(t, want)
	w.Wait()
	w.DB.Exec(t, `SELECT reconciler.pause('eu')`)
	eu.Put("app/1", `"edited by hand"`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("1 pause", `SELECT key || ' ' || held_by FROM reconciler.objects WHERE state = 'held'`)
	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	eu.Eventually(t, want)
	w.Converged()
}

func TestEditIsReportedInReportMode(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	want, eu := w.Fleet(5), newWatched()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.SyncMode = config.SyncReport }))
	<-eu.began
	w.Seen("eu")
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.Eventually(t, want)
	w.Wait()
	w.Settled("0", unfinished)
	_, before, _ := eu.Snapshot()
	const drift = `SELECT string_agg(key || ' ' || kind, ', ' ORDER BY key) FROM reconciler.drift`
	eu.edit("app/1", `"edited by hand"`)
	w.Settled("1 different", drift)
	eu.edit("app/2", "")
	w.Settled("1 different, 2 missing", drift)
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before))
	w.Settled("complete watch report", `SELECT state || ' ' || reason || ' ' || mode FROM reconciler.syncs ORDER BY id DESC LIMIT 1`)
	require.Equal(t, "false", w.Text(`SELECT reconciler.awaited(s, now())::text FROM reconciler.sync_runs s WHERE reason = 'watch' LIMIT 1`))

	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.Eventually(t, want)
}

// TRUNCATE is applied in report mode, too, and what differs without it stays.
func TestSyncOfChangesLeavesDriftInReportMode(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	want, eu := w.Fleet(2), newWatched()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.SyncMode = config.SyncReport }))
	w.Seen("eu")
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	eu.Eventually(t, want)
	w.Wait()
	w.Settled("0", unfinished)
	eu.Put("app/1", `"edited by hand"`)
	w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, mode, verify)
		SELECT t.id, r.id, 'resource', 'repair', true FROM reconciler.targets t, reconciler.resources r`)
	w.DB.Exec(t, servertest.Control)
	w.Settled("complete resource rows=2 upserts=0 tombstones=0 drifted=0 held=0", servertest.LastSync)
	require.Equal(t, `"edited by hand"`, eu.Have()["app/1"])
}

// A sync that a watch asks for gives way to any other one of the resource, which then looks at the target, too.
func TestSyncOfAWatchJoinsOthers(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	w.DB.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('eu')`)
	queries, ctx := store.New(w.DB.Pool), t.Context()
	const waiting = `SELECT string_agg(concat_ws(' ', reason, mode, verify), ', ') FROM reconciler.sync_runs`
	watch := store.SyncListParams{TargetID: 1, ResourceID: 1, Reason: "watch", Mode: "report"}
	change := store.SyncRequestParams{TargetID: 1, ResourceID: 1, Reason: "resource", Mode: "repair"}
	for range 2 {
		require.NoError(t, queries.SyncList(ctx, watch))
		require.Equal(t, "watch report t", w.Text(waiting))
	}
	require.NoError(t, queries.SyncRequest(ctx, change))
	require.Equal(t, "resource repair t", w.Text(waiting))
	w.DB.Exec(t, `DELETE FROM reconciler.sync_runs`)
	require.NoError(t, queries.SyncRequest(ctx, change))
	require.NoError(t, queries.SyncList(ctx, watch))
	require.Equal(t, "resource repair t", w.Text(waiting))
	watch.ResourceID = 99
	require.NoError(t, queries.SyncList(ctx, watch))
	require.Equal(t, "1", w.Text(syncs))
}

// An object that the ledger does not know is a sync's to find, which counts deletes.
func TestOrphanThatIsNamedIsNotDeleted(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 3)
	eu.edit("app/stray", `"nobody wants me"`)
	eu.edit("app/", "x")
	eu.edit("nothing/1", "x")
	eu.name("app/" + strings.Repeat("x", 3000))
	eu.edit("app/1", `"edited by hand"`)
	want["app/stray"], want["app/"], want["nothing/1"] = `"nobody wants me"`, "x", "x"
	eu.Eventually(t, want)
	_, calls, _ := eu.Snapshot()
	for _, c := range calls {
		require.Equal(t, "apply", c.Action)
	}
	require.EqualValues(t, 1, w.Series("watch_events_total"))
	require.Equal(t, "3", w.Text(`SELECT count(*)::text FROM reconciler.ledger`))
}

// What fails or is blocked is tried again when its turn has come.
func TestObjectThatIsNamedKeepsItsTurn(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, _ := watchFleet(w, 4)
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		switch c.Spec {
		case `"fails"`:
			return driver.RetryAfter(servertest.Deadline*10, refused)
		case `"waits"`:
			return driver.Waiting(servertest.Deadline*10, "not yet")
		case `"never"`:
			return driver.Terminal(refused)
		}
		return driver.Done()
	})
	w.DB.Exec(t, `UPDATE apps SET image = CASE id WHEN 1 THEN 'fails' WHEN 2 THEN 'waits' ELSE 'never' END WHERE id < 4`)
	const states = `SELECT string_agg(state::text, ', ' ORDER BY key) FROM reconciler.ledger`
	w.Settled("failing, pending, blocked, applied", states)
	_, before, _ := eu.Snapshot()
	for _, id := range []string{"app/1", "app/2", "app/3"} {
		eu.edit(id, "")
	}
	eu.edit("app/4", "")
	w.Eventually("what is applied is repaired", func() bool { return eu.Have()["app/4"] == `"v1"` })
	_, after, _ := eu.Snapshot()
	require.Len(t, after, len(before)+1)
	require.Equal(t, "failing, pending, blocked, applied", w.Text(states))
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
			w := servertest.WithApps(t)
			want, eu := w.Fleet(3), newWatched()
			eu.breaks(c.breaks)
			w.StartWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, servertest.Named("eu", eu))
			w.Settled("watch: "+c.error, `SELECT loop || ': ' || error FROM reconciler.failing_loops`)
			w.Wait()
			eu.Eventually(t, want)
			w.Settled("error", `SELECT state FROM reconciler.status`)
			require.Regexp(t, "^watch of .+ has been failing since .+: "+c.error+"$", w.Text(`SELECT last_error FROM reconciler.status`))
			w.Settled("1", `SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND finding LIKE '%watch of target eu%'`)
			require.NotZero(t, w.Series("loop_failures_total", "watch"))
			require.NotEmpty(t, w.Logged(c.inLog))
			w.Eventually("it is ready", func() bool { return w.Ready() == "200 ok" })
			eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(refused) })
			w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
			w.Settled("failing", `SELECT state FROM reconciler.status`) // that is more urgent
			eu.Set(nil)
			w.DB.Exec(t, `UPDATE apps SET image = 'v1' WHERE id = 3`)
			w.Wait()

			eu.breaks(nil)
			<-eu.began
			eu.edit("app/1", `"edited by hand"`)
			eu.Eventually(t, want)
			w.Settled("", `SELECT string_agg(loop, ', ') FROM reconciler.failing_loops`)
			w.Settled("ok", `SELECT state FROM reconciler.status`)
		})
	}
}

// What a restore has brought back is in no ledger: a sync finds it.
func TestF170_WatchOfATargetThatWasSetBackHasItSynced(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 3)
	eu.Put("app/old", `"from the backup"`)
	eu.ends <- fmt.Errorf("watch: %w", driver.ErrRestored)
	eu.Eventually(t, want)
	w.Settled("complete watch repair", `SELECT state || ' ' || reason || ' ' || mode FROM reconciler.syncs ORDER BY id DESC LIMIT 1`)
	<-eu.began
}

// Only the owner watches.
func TestWatchMovesWithTheTarget(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	want, eu := w.Fleet(3), servertest.NewPlace()
	first, second := newWatched(), newWatched()
	first.Place, second.Place = eu, eu
	p := w.Start(servertest.Named("eu", first))
	<-first.began
	w.Start(servertest.Named("eu", second))
	eu.Eventually(t, want)
	w.Settled("2", `SELECT count(*)::text FROM reconciler.instances`)
	require.Zero(t, second.watches())
	p.Stop(t)
	require.Zero(t, first.watches())
	<-second.began
	second.edit("app/1", `"edited by hand"`)
	eu.Eventually(t, want)
}

// What is named while there is no room is left to a sync, which is requested.
func TestFloodOfNamesNeitherBlocksNorIsForgotten(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 20)
	const byWatch = `SELECT count(*)::text FROM reconciler.syncs WHERE reason = 'watch' AND verify AND mode = 'repair'`
	w.Eventually("a sync is requested", func() bool {
		for i := range 100_000 {
			eu.name(fmt.Sprintf("app/%d", 100_020-i)) // none that the target has
		}
		return w.Text(byWatch) != "0"
	})
	for i := range 100_000 {
		eu.name(fmt.Sprintf("app/%d", 100_020-i))
	}
	for i := range 20 {
		eu.edit(fmt.Sprintf("app/%d", i+1), "")
	}
	eu.Eventually(t, want)
	w.Converged()
}

// A call that the target names as a change of its own leads to some more calls, and not to calls without end.
func TestCallsThatNameThemselvesEnd(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	eu, want := watchFleet(w, 2)
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		eu.name(c.ID())
		return driver.Done()
	})
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	w.Eventually("it is noticed", func() bool { return len(w.Logged("msg=object_keeps_changing")) > 0 })
	want["app/1"] = `"v2"`
	eu.Eventually(t, want)
	require.Contains(t, w.Logged("msg=object_keeps_changing")[0], `target=eu resource=app key=1 effect="it is repaired less and less often"`)
}
