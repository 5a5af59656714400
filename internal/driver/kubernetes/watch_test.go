package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// watching is a watch of a driver, and the objects that it has named.
type watching struct {
	t     *testing.T
	named chan string
	ended chan error
	stop  context.CancelCauseFunc
}

func (c *caller) watch(t *testing.T) *watching {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	w := &watching{t: t, named: make(chan string, 1000), ended: make(chan error, 1), stop: cancel}
	watcher, ok := c.Driver.(interface {
		Watch(ctx context.Context, changed func(resource, key string)) error
	})
	require.True(t, ok)
	go func() {
		w.ended <- watcher.Watch(ctx, func(resource, key string) { w.named <- resource + "/" + key })
		close(w.ended)
	}()
	t.Cleanup(func() {
		cancel(errors.New("the test is over"))
		for range w.ended {
			continue
		}
	})
	return w
}

// names waits until the watch has named an object, and others none but the marker.
func (w *watching) names(want string) {
	w.t.Helper()
	for have := "apps/marker"; have == "apps/marker"; {
		select {
		case have = <-w.named:
			require.Contains(w.t, []string{want, "apps/marker"}, have)
		case <-w.t.Context().Done():
			require.FailNow(w.t, "the watch did not name "+want)
		case err := <-w.ended:
			require.FailNow(w.t, "the watch has ended", err)
		}
	}
}

// follows edits an object that is not the test's until the watch names it: it follows what is changed from now on, and has seen what came
// before. It may have named no other.
func (w *watching) follows(b *bed, c *caller) {
	w.t.Helper()
	c.done(w.t, "marker", configMap("marker", one("0")))
	n := 0
	require.NoError(w.t, pgtest.Poll(w.t.Context(), callPatience, func() error {
		n++
		b.edit(w.t, configMaps, "marker", "kubectl-edit", fmt.Sprintf(`{"data": {"a": "%d"}}`, n))
		select {
		case have := <-w.named:
			require.Equal(w.t, "apps/marker", have)
			return nil
		default:
			// Another spec: the same one again and again would be a fight.
			c.done(w.t, "marker", configMap("marker", one(fmt.Sprint("spec ", n))))
			return errors.New("the watch has not named the marker")
		}
	}))
}

func TestWatchNamesWhatOthersChange(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	w := c.watch(t)
	w.follows(b, c)
	repair := func() { c.done(t, "web", configMap("a", one("1")), configMap("b", one("1"))) }

	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	w.names("apps/web")
	repair()
	b.edit(t, configMaps, "a", "kubectl-edit", `{"metadata": {"labels": null, "annotations": null}}`)
	w.names("apps/web")
	repair()
	b.remove(t, configMaps, "b")
	w.names("apps/web")
	repair()

	b.edit(t, configMaps, "a", "somebody", `{"data": {"other": "2"}}`)
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("3")))
	requireDone(t, c.delete(t, "web"))
	w.follows(b, c) // neither a foreign field nor calls of our own were named
}

func TestWatchFollowsKindsThatCome(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	w := c.watch(t)
	w.follows(b, c)
	c.done(t, "web", deployment("web", 1))
	replicas := int64(1)
	require.NoError(t, pgtest.Poll(t.Context(), callPatience, func() error { // the watch of a new kind begins with a list
		b.edit(t, deployments, "web", "kubectl-edit", `{"spec": {"replicas": 7}}`)
		for len(w.named) > 0 {
			if <-w.named == "apps/web" {
				return nil
			}
		}
		replicas++ // the same spec again and again would be a fight
		c.done(t, "web", deployment("web", replicas))
		return errors.New("the watch has not named the Deployment")
	}))
}

// An owner that takes over has seen no member yet.
func TestWatchOfANewOwnerNamesWhatOthersChange(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	next := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	next.memory = c.memory
	w := next.watch(t)
	w.follows(b, next)
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	w.names("apps/web")
	b.remove(t, configMaps, "b")
	w.names("apps/web")
}

// A watch that waited for ever would neither name anything nor be seen to fail.
func TestWatchThatGetsNoAnswerFails(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{"ApplySet": "", "List": "limit=", "Watch": "watch=true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := fakeBed(t)
			c := b.open(t, "prod", nil)
			c.done(t, "web", configMap("a", one("1")))
			own, ok := c.Driver.(*cluster)
			require.True(t, ok)
			own.answerWithin = 200 * time.Millisecond
			b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
				if !strings.Contains(r.URL.RawQuery, query) {
					return nil
				}
				<-r.Context().Done()
				return &fakeapi.Failure{Abort: true}
			})
			w := c.watch(t)
			if query == "" {
				require.Error(t, <-w.ended)
			} else {
				require.NoError(t, pgtest.Poll(t.Context(), callPatience, func() error {
					if c.unwatched(t) == nil {
						return errors.New("nothing is unwatched")
					}
					return nil
				}))
			}
			b.fake.Fail(nil)
		})
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	w := c.watch(t)
	w.follows(b, c)
	w.stop(errors.New("the target was handed over"))
	require.EqualError(t, <-w.ended, "the target was handed over")
}

func TestWatchFindsWhatItMissed(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")))
	c.done(t, "api", configMap("b", one("1")))
	w := c.watch(t)
	w.follows(b, c)
	refused := make(chan struct{}, 1)
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.URL.Query().Get("watch") == "" {
			return nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return refusal(410, "Expired", "too old resource version")
	})
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	w.names("apps/web")
	b.fake.Cut()
	<-refused // no event comes from here on
	b.remove(t, configMaps, "b")
	w.names("apps/api")
	b.fake.Fail(nil)
	c.done(t, "web", configMap("a", one("1")))
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "3"}}`)
	w.names("apps/web")
}

// The events of a call may come after the next call, and those of a delete after the member was created anew.
func TestEventsFromBeforeTheLastCallAreNoChange(t *testing.T) {
	t.Parallel()
	c, ok := fakeBed(t).open(t, "prod", nil).Driver.(*cluster)
	require.True(t, ok)
	at, row := place{Name: "a"}, rowName{"apps", "web"}
	event := func(version string, gone bool) bool {
		c.members[at] = base{row: row, sum: 1, version: 10}
		meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version}}
		found, changed := c.saw(sight{at: at, meta: meta, event: true, gone: gone})
		require.Equal(t, row, found)
		return changed
	}
	for _, gone := range []bool{false, true} {
		require.False(t, event("9", gone))
		require.False(t, event("10", gone))
		require.True(t, event("11", gone))
	}
}

func TestWatchGoesOnWhenItsClusterDoes(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", driver.Options{"force_managers": []any{"kubectl-edit"}})
	c.done(t, "web", configMap("a", one("1")))
	w := c.watch(t)
	w.follows(b, c)
	refused := make(chan struct{}, 1000)
	b.fake.Fail(func(*http.Request) *fakeapi.Failure {
		refused <- struct{}{}
		return refusal(403, "Forbidden", `User "x" cannot watch resource "configmaps"`)
	})
	b.fake.Cut()
	for range 2 {
		<-refused
	}
	require.EqualError(t, c.unwatched(t), `watch ConfigMap: User "x" cannot watch resource "configmaps"`)
	b.fake.Fail(nil)
	b.edit(t, configMaps, "a", "kubectl-edit", `{"data": {"a": "2"}}`)
	w.names("apps/web")
	w.goesOn()
}
