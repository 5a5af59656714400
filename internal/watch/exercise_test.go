package watch_test

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// The server in memory that users test against passes the same test.
func TestServerPassesExercise(t *testing.T) {
	t.Parallel()
	b := setup(t, small(10, 1<<20))
	for n := range 35 {
		b.apply(fmt.Sprintf(`{"n": %d}`, n), fmt.Sprint("key-", n))
	}
	b.apply(`"text"`, "a/b ü")
	b.remove("key-7")
	b.unsettled("blocked", "blocked", "")
	b.complete()
	streamtest.Exercise(t, b.server.URL)
}

// world is what a controller of the client keeps equal to the stream.
type world struct {
	mu   sync.Mutex // guards what follows
	apps map[string]string
	wake chan struct{}
}

func (w *world) set(key, spec string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if spec == "" {
		delete(w.apps, key)
	} else {
		w.apps[key] = spec
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// becomes waits until the world equals want.
func (w *world) becomes(t *testing.T, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for {
		w.mu.Lock()
		got := maps.Clone(w.apps)
		w.mu.Unlock()
		if maps.Equal(want, got) {
			return
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			require.Equal(t, want, got)
		}
	}
}

// A controller of the client makes its world equal to the stream, and reports that.
func TestControllerOfTheClientFollowsTheServer(t *testing.T) {
	t.Parallel()
	b := setup(t, small(10, 1<<20))
	b.apply(`{"image": "v1"}`, "1", "2", "3")
	c, err := client.New(b.server.URL)
	require.NoError(t, err)
	informer := client.NewInformer(c, "eu", client.InformerOptions{Resources: []string{"app"}})
	apps := client.For[struct{ Image string }](informer, "app")
	w := &world{apps: map[string]string{"orphan": "v0", "1": "v0"}, wake: make(chan struct{}, 1)}
	controller := client.NewController(informer, "app", func(_ context.Context, key string) (client.Result, error) {
		app, found, err := apps.Get(key)
		if err != nil {
			return client.Failed(err.Error()), nil
		}
		w.set(key, app.Image)
		if !found {
			return client.Absent(), nil
		}
		return client.Applied(), nil
	}, client.Existing(func(context.Context) iter.Seq2[string, error] {
		w.mu.Lock()
		defer w.mu.Unlock()
		keys := maps.Clone(w.apps)
		return func(yield func(string, error) bool) {
			for key := range keys {
				if !yield(key, nil) {
					return
				}
			}
		}
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = informer.Run(ctx) })
	running.Go(func() { _ = controller.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	b.complete()
	w.becomes(t, map[string]string{"1": "v1", "2": "v1", "3": "v1"})
	b.apply(`{"image": "v2"}`, "2", "4")
	b.remove("3")
	w.becomes(t, map[string]string{"1": "v1", "2": "v2", "4": "v2"})
	b.server.CloseClientConnections()
	b.remove("4")
	w.becomes(t, map[string]string{"1": "v1", "2": "v2"})
	reported := fmt.Sprintf("1 v%d applied, 2 v%d applied, 3 v%d absent, 4 v%d absent", b.version("1"), b.version("2"), b.version("3"), b.version("4"))
	require.Eventually(t, func() bool { return b.observed() == reported }, deadline, 10*time.Millisecond, "it reports what it did: %s", reported)
}
