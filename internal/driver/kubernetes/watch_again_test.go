package kubernetes

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// unwatched returns what the watch of a driver leaves out.
func (c *caller) unwatched(t *testing.T) error {
	t.Helper()
	watcher, ok := c.Driver.(driver.PartWatcher)
	require.True(t, ok)
	return watcher.Unwatched()
}

// goesOn fails if a watch has ended.
func (w *watching) goesOn() {
	w.t.Helper()
	select {
	case err := <-w.ended:
		require.FailNow(w.t, "the watch has ended", err)
	default:
	}
}

// A restored cluster counts its versions from those of the snapshot: what it changes now is older than what was seen of the object.
func TestF170_WatchNamesChangesAfterARestoreOfTheCluster(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	apply := func(value string) {
		c.done(t, "web", configMap("a", one(value)))
		c.done(t, "api", configMap("b", one(value)))
	}
	apply("1")
	w := c.watch(t)
	w.follows(b, c)
	restore := b.fake.Snapshot()
	for i := range 20 {
		apply(fmt.Sprint("later ", i))
	}
	apply("1")
	w.follows(b, c) // it has seen all of that
	restore()
	require.ErrorIs(t, <-w.ended, driver.ErrRestored)

	w = c.watch(t)
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	w.names("apps/web")
	b.remove(t, configMaps, "b")
	w.names("apps/api")
	w.goesOn()
}

// A sync may list the cluster before the watch does.
func TestF170_SyncNoticesARestoreOfTheCluster(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")))
	restore := b.fake.Snapshot()
	c.done(t, "web", configMap("a", one("2")))
	c.done(t, "web", configMap("a", one("1")))
	require.Empty(t, c.drifted(t))
	restore()
	require.Empty(t, c.drifted(t))
	require.ErrorIs(t, <-c.watch(t).ended, driver.ErrRestored)

	w := c.watch(t) // it is noticed once
	w.follows(b, c)
	b.remove(t, configMaps, "a")
	w.names("apps/web")
	w.goesOn()
}

// A proxy may answer every watch at once, with nothing.
func TestF175_WatchThatEndsAtOnceIsAskedForAgainAfterAPause(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")))
	asked := make(chan time.Time, 3)
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.URL.Query().Get("watch") == "" {
			return nil
		}
		select {
		case asked <- time.Now():
		default:
		}
		return &fakeapi.Failure{Empty: true}
	})
	w := c.watch(t)
	first, second, third := <-asked, <-asked, <-asked
	require.Greater(t, second.Sub(first), pace.Of(time.Second)*3/4) // a fifth more or less
	require.Greater(t, third.Sub(second), pace.Of(2*time.Second)*3/4)
	require.EqualError(t, c.unwatched(t), "watch ConfigMap: the watch ended without an error")
	b.fake.Fail(nil)
	w.follows(b, c)
	require.NoError(t, pgtest.Poll(t.Context(), callPatience, func() error { return c.unwatched(t) }))
	w.goesOn()
}

// The others go on, and what fails shows.
func TestF174_KindThatCannotBeWatchedStopsNoOther(t *testing.T) {
	t.Parallel()
	ofDeployments := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/deployments") }
	for name, fails := range map[string]func(r *http.Request) bool{
		"Discovery": func(r *http.Request) bool { return r.URL.Path == "/apis/apps/v1" },
		"List":      ofDeployments,
		"Watch":     func(r *http.Request) bool { return ofDeployments(r) && r.URL.Query().Get("watch") != "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fakeBed(t)
			opts := driver.Options{"force_managers": []any{"kubectl-edit"}}
			b.open(t, "prod", opts).done(t, "web", deployment("web", 1))
			c := b.open(t, "prod", opts)
			failed := make(chan struct{}, 1000)
			b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
				if !fails(r) {
					return nil
				}
				failed <- struct{}{}
				return refusal(500, "InternalError", "conversion webhook failed")
			})
			w := c.watch(t)
			for range 2 {
				<-failed
			}
			w.follows(b, c)
			require.ErrorContains(t, c.unwatched(t), "watch Deployment.apps: ")
			require.ErrorContains(t, c.unwatched(t), "conversion webhook failed")

			b.fake.Fail(nil)
			require.NoError(t, pgtest.Poll(t.Context(), callPatience, func() error { return c.unwatched(t) }))
			w.goesOn()
			b.edit(t, deployments, "web", "kubectl-edit", `{"spec": {"replicas": 7}}`)
			w.names("apps/web")
		})
	}
}
