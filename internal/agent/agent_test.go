package agent

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

func TestAgentAppliesUpdatesAndDeletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Set("app", "web", spec(1))
		b.Set("dns", "www", spec(2))
		r := b.start(t)
		after(time.Second)
		require.Equal(t, `app/web={"n":1} dns/www={"n":2}`, b.far.has())
		require.Equal(t, StateOK, r.target().State)
		require.Equal(t, "streamtest", b.far.home.ID)

		b.Set("app", "web", spec(3))
		b.Delete("dns", "www")
		after(time.Second)
		require.Equal(t, `app/web={"n":3}`, b.far.has())
		states := map[string]client.State{}
		for _, o := range b.Observations() {
			states[o.Key] = o.State
		}
		require.Equal(t, map[string]client.State{"web": client.StateApplied, "www": client.StateAbsent}, states)
		require.NoError(t, r.stop())
		require.True(t, b.far.closed)
	})
}

// A2: the server is away all the time, over restarts; the far side stays as it was last known to be wanted.
func TestAgentWorksWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: 1m\n"
		b.far.outcomes["late"] = backoff("disk full")
		for _, key := range []string{"changed", "removed", "late", "same"} {
			b.Set("app", key, spec(1))
		}
		r := b.start(t)
		after(time.Second)
		b.Down()
		b.far.change(func() {
			b.far.objects[client.Ref{Resource: "app", Key: "changed"}] = `{"n":9}`
			delete(b.far.objects, client.Ref{Resource: "app", Key: "removed"})
			b.far.objects[client.Ref{Resource: "app", Key: "orphan"}] = `{"n":9}`
		})
		after(2 * time.Minute)
		require.Equal(t, `app/changed={"n":1} app/removed={"n":1} app/same={"n":1}`, b.far.has())
		require.Equal(t, StateAway, r.target().State)
		require.Empty(t, r.target().ready)
		require.NoError(t, r.stop())

		b.far.change(func() {
			delete(b.far.objects, client.Ref{Resource: "app", Key: "removed"})
			b.far.objects[client.Ref{Resource: "app", Key: "orphan"}] = `{"n":9}`
		})
		b.far.called()
		r = b.start(t)
		after(10 * time.Second)
		require.NotContains(t, b.far.called(), "same", "what is applied is not applied again after a restart")
		require.Contains(t, b.far.has(), `app/removed={"n":1}`)
		b.far.change(func() { clear(b.far.outcomes) })
		after(5 * time.Minute)
		require.Equal(t, `app/changed={"n":1} app/late={"n":1} app/orphan={"n":9} app/removed={"n":1} app/same={"n":1}`, b.far.has(),
			"after a restart nothing is an orphan before the server has confirmed the objects")

		b.Up()
		after(time.Minute)
		require.Equal(t, `app/changed={"n":1} app/late={"n":1} app/removed={"n":1} app/same={"n":1}`, b.far.has())
		require.Equal(t, StateOK, r.target().State)
		require.NoError(t, r.stop())
	})
}

// A4: a paused target is not repaired, and a command takes effect later.
func TestAgentObeysThePauseAndOrdersThatWereGivenWhileItWasAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: 1m\n"
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		b.Control(client.Controls{Paused: true})
		after(time.Second)
		b.far.change(func() { clear(b.far.objects) })
		after(5 * time.Minute)
		require.Empty(t, b.far.has(), "a paused target is not repaired")
		require.Equal(t, StatePaused, r.target().State)
		b.Control(client.Controls{})
		after(2 * time.Minute)
		require.Equal(t, `app/web={"n":1}`, b.far.has())

		b.far.called()
		b.Down()
		b.Control(client.Controls{Resync: 1})
		after(time.Minute)
		require.NoError(t, r.stop())
		require.Empty(t, b.far.called())
		r = b.start(t)
		b.Up()
		after(time.Minute)
		require.Equal(t, []string{"web"}, b.far.called(), "the resync is made up for")
		require.NoError(t, r.stop())
	})
}

func TestAgentReportsTheWholeAfterEachSyncAndASignOfLifeEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: 10m\n"
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(30 * time.Second)
		b.wire.sent()
		require.Equal(t, client.Info{Name: "host-7", Version: "1.2.0", Driver: "far"}, b.Info())
		after(5 * time.Minute)
		beats := b.wire.sent()
		require.Len(t, beats, 5)
		require.NotContains(t, beats[0], "web")
		after(10 * time.Minute)
		complete := 0
		for _, report := range b.wire.sent() {
			if line := `"complete":true`; strings.Contains(report, line) {
				complete++
				require.Contains(t, report, `"key":"web"`)
			}
		}
		require.Equal(t, 1, complete)
		require.NoError(t, r.stop())
	})
}

func TestAgentStopsWhenAnotherProcessHasItsState(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	store, err := client.OpenStore(b.load(t, false).opts.Config.Agent.StateDir + "/eu.db")
	require.NoError(t, err)
	defer func() { _ = store.Close() }()
	err = b.load(t, false).Run(t.Context())
	require.EqualError(t, err, "target eu: store "+b.dir+"/state/eu.db: another process has it open")
	require.True(t, b.far.closed)
}

func TestAgentKeepsItsStateToItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		r := b.start(t)
		require.NoError(t, r.stop())
		files, err := os.ReadDir(b.dir + "/state")
		require.NoError(t, err)
		modes := map[string]os.FileMode{}
		for _, f := range files {
			info, err := f.Info()
			require.NoError(t, err)
			modes[f.Name()] = info.Mode()
		}
		require.Equal(t, map[string]os.FileMode{"eu.db": 0o600, "agent.json": 0o600}, modes)
	})
}

// F133: of a program's listing, an object of a resource that the stream has nothing of may be an object of another resource.
func TestF133_ListingOfAnAgentThatNamesAnUnknownResourceDeletesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: 5s\n"
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		b.far.change(func() {
			b.far.unmarked = true
			b.far.objects[client.Ref{Resource: "app", Key: "orphan"}] = "{}"
			b.far.objects[client.Ref{Resource: "apps", Key: "web"}] = "{}"
		})
		after(time.Minute)
		require.Equal(t, "the sync failed: list what the target has: it names an object of resource apps, of which the stream has none: key web; nothing is deleted. "+
			"Correct what makes the listing: it must name the resource of each object, and leave out what reconciler did not apply here", r.target().Trouble)
		require.Equal(t, `app/orphan={} app/web={"n":1} apps/web={}`, b.far.has())
		b.far.change(func() { delete(b.far.objects, client.Ref{Resource: "apps", Key: "web"}) })
		after(10 * time.Minute)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.Empty(t, r.target().Trouble)
	})
}

func TestAgentShowsThatASyncFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  sync_interval: 5s\n"
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		require.Empty(t, b.Info().Trouble)
		b.far.change(func() { b.far.listErr = errors.New("permission denied") })
		after(10 * time.Second) // before the next sign of life
		const trouble = "the sync failed: list what the target has: permission denied"
		require.Equal(t, trouble, r.target().Trouble)
		require.Equal(t, trouble, b.Info().Trouble)
		require.Equal(t, StateFailing, r.target().State)
		b.far.change(func() {
			b.far.listErr = nil
			b.far.objects[client.Ref{Resource: "app", Key: "orphan"}] = "{}"
		})
		after(10 * time.Minute)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.Equal(t, StateOK, r.target().State)
	})
}

func TestAgentReturnsMemoryAMinuteAfterItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, freed := newBed(t), atomic.Int32{}
		b.lines = "  sync_interval: off\n"
		b.Set("app", "a", spec(1))
		a := b.load(t, false)
		a.free = func() { freed.Add(1) }
		b.run(t, a)
		after(30 * time.Second)
		require.Zero(t, freed.Load())
		after(time.Hour)
		require.EqualValues(t, 1, freed.Load())
		b.Set("app", "a", spec(2))
		after(3 * time.Minute)
		require.EqualValues(t, 2, freed.Load())
	})
}
