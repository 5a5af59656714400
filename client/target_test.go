package client_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// whole is a process with a controller of a whole target, and the far side that it keeps equal to the objects.
type whole struct {
	informer   *client.Informer
	controller *client.Controller
	stop       func()

	mu      sync.Mutex // guards what follows
	has     map[client.Ref]string
	calls   []client.Ref
	results map[client.Ref]func() (client.Result, error)
}

// wholeTarget starts a process. Without a path it has no store.
func wholeTarget(t *testing.T, s *streamtest.Server, path string, opts client.InformerOptions, options ...client.ControllerOption) *whole {
	t.Helper()
	closing := func() {}
	if path != "" {
		opts.Store = openStore(t, path)
		closing = func() { require.NoError(t, opts.Store.Close()) }
	}
	w := &whole{has: map[client.Ref]string{}, results: map[client.Ref]func() (client.Result, error){}}
	w.informer = client.NewInformer(s.Client(), "eu", opts)
	w.controller = client.NewTargetController(w.informer, w.handle, options...)
	stopInformer, stop := start(t, w.informer.Run), start(t, w.controller.Run)
	w.stop = func() {
		stop()
		stopInformer()
		closing()
	}
	return w
}

func (w *whole) stopWhenSettled() {
	settle()
	w.stop()
}

func (w *whole) handle(_ context.Context, object client.Ref) (client.Result, error) {
	o, wanted := w.informer.Object(object.Resource, object.Key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, object)
	if result := w.results[object]; result != nil {
		return result()
	}
	if !wanted {
		delete(w.has, object)
		return client.Absent(), nil
	}
	w.has[object] = string(o.Spec)
	return client.Applied(), nil
}

func (w *whole) on(object client.Ref, result func() (client.Result, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.results[object] = result
}

func (w *whole) state() map[client.Ref]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.has)
}

// called returns the objects of the calls since the last time, as resource/key and in order.
func (w *whole) called() (calls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.calls {
		calls = append(calls, r.Resource+"/"+r.Key)
	}
	w.calls = nil
	slices.Sort(calls)
	return calls
}

// failure has each call return an error.
func failure() (client.Result, error) {
	return client.Result{}, errors.New("the far side does not answer")
}

func TestTargetControllerKeepsEveryResourceEqual(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", "v1")
		s.Set("dns", "1", "v1")
		w := wholeTarget(t, s, "", client.InformerOptions{})
		settle()
		s.Set("dns", "1", "v2")
		version := s.Set("secret", "1", "v1")
		s.Delete("app", "1")
		settle()
		require.Equal(t, map[client.Ref]string{{Resource: "dns", Key: "1"}: `"v2"`, {Resource: "secret", Key: "1"}: `"v1"`}, w.state())
		o, found := w.informer.Object("secret", "1")
		require.True(t, found)
		sent, err := s.Client().Get(t.Context(), "eu", "secret", "1")
		require.NoError(t, err)
		o.Revision = version
		require.Equal(t, sent, o)
		_, found = w.informer.Object("app", "1")
		require.False(t, found)
		require.Equal(t, []string{"dns", "secret"}, w.informer.Resources())
		_, err = s.WaitObserved(t.Context(), "app", "1", client.StateAbsent)
		require.NoError(t, err)
	})
}

// Of each resource only what the far side has and nothing wants is deleted. What the informer knows nothing of is left.
func TestExistingObjectsAreThoseOfKnownResources(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", "v1")
		existing := func(context.Context) iter.Seq2[client.Ref, error] {
			return func(yield func(client.Ref, error) bool) {
				for _, text := range []string{"app/1", "app/orphan", "app/", "unknown/1"} {
					resource, key, _ := strings.Cut(text, "/")
					if !yield(client.Ref{Resource: resource, Key: key}, nil) {
						return
					}
				}
			}
		}
		w := wholeTarget(t, s, "", client.InformerOptions{}, client.ExistingObjects(existing))
		settle()
		require.Equal(t, []string{"app/1", "app/orphan"}, w.called())
		w.controller.List()
		settle()
		require.Equal(t, []string{"app/orphan"}, w.called())
		s.Set("unknown", "2", "v1")
		settle()
		w.controller.List()
		settle()
		require.Equal(t, []string{"app/orphan", "unknown/1", "unknown/2"}, w.called())
	})
}

// MaxDeletes counts by resource: many objects of one do not let all objects of another one go.
func TestMaxDeletesCountsForEachResource(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 200)
		for key := range strings.SplitSeq("abcdefghijk", "") {
			s.Set("dns", key, "v1")
		}
		w := wholeTarget(t, s, "", client.InformerOptions{})
		settle()
		s.Lose("app", "1")
		for key := range strings.SplitSeq("abcdefghijk", "") {
			s.Lose("dns", key)
		}
		s.Reset("expired")
		settle()
		require.Equal(t, 11, w.controller.Status().Held)
		require.Len(t, w.state(), 199+11)
		require.Equal(t, []string{"app", "dns"}, w.informer.Resources())
		require.Equal(t, 11, w.controller.ApproveDeletes())
		settle()
		require.Len(t, w.state(), 199)
	})
}

func TestEnqueueRunsTheHandler(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", "v1")
		s.Set("app", "2", "v1")
		w := wholeTarget(t, s, "", client.InformerOptions{})
		settle()
		w.called()
		w.controller.Enqueue(client.Ref{Resource: "app", Key: "2"}, client.Ref{Resource: "app", Key: "nothing"})
		settle()
		require.Equal(t, []string{"app/2"}, w.called())
	})
}

// A controller that is suspended begins nothing, and makes up for it when it resumes, also when a snapshot ends in between.
func TestSuspendedControllerBeginsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", "v1")
		w := wholeTarget(t, s, "", client.InformerOptions{})
		settle()
		w.called()
		w.controller.Suspend("the circuit is open")
		require.Equal(t, client.ControllerStatus{Suspended: "the circuit is open"}, w.controller.Status())
		s.Set("app", "1", "v2")
		s.Reset("expired")
		settle()
		require.Empty(t, w.called())
		require.Equal(t, client.ControllerStatus{Queued: 1, Suspended: "the circuit is open"}, w.controller.Status())
		w.controller.Resume()
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		require.Equal(t, client.ControllerStatus{}, w.controller.Status())
	})
}

// A stream of another database or of another life of the target is not followed.
func TestSameStreamEndsWithAnotherOne(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		w := wholeTarget(t, s, path, client.InformerOptions{SameStream: true})
		settle()
		s.Reset("restored") // the same stream
		settle()
		w.stop()

		s.Lose("app", "1")
		s.Reset("unknown")
		for range 2 {
			store := openStore(t, path)
			i := client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: store, SameStream: true})
			err := i.Run(t.Context())
			require.ErrorIs(t, err, client.ErrStream)
			require.EqualError(t, err, "store "+path+": another stream: the server knows nothing of the stream of target eu that the objects are of")
			require.Equal(t, 1, i.Status().Objects)
			require.EqualError(t, store.Adopt(), "store "+path+": an informer uses it: adopt before Run")
			require.NoError(t, store.Close())
		}
		s.Become("another")
		store := openStore(t, path)
		require.NoError(t, store.Adopt())
		require.NoError(t, store.Close())
		w = wholeTarget(t, s, path, client.InformerOptions{SameStream: true}, client.MaxDeletes(0))
		settle()
		require.Equal(t, 1, w.controller.Status().Held, "what the other stream leaves out is a delete from absence")
		require.Equal(t, []string{"app"}, w.informer.Resources())
		w.stop()
	})
}

// A store that is adopted waits for the snapshot of the new stream, and has its objects until then.
func TestAdoptKeepsTheObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		fresh := openStore(t, path)
		require.NoError(t, fresh.Adopt())
		require.NoError(t, fresh.Close())
		s.Set("app", "1", "v1")
		s.Control(client.Controls{Approve: 7})
		w := wholeTarget(t, s, path, client.InformerOptions{})
		settle()
		w.stop()
		store := openStore(t, path)
		require.NoError(t, store.Adopt())
		require.NoError(t, store.Close())
		s.Down()
		w = wholeTarget(t, s, path, client.InformerOptions{})
		time.Sleep(time.Minute)
		require.False(t, closed(w.informer.Synced()))
		require.Equal(t, 1, w.informer.Status().Objects)
		require.Equal(t, client.Controls{}, w.informer.Controls())
		s.Become("another")
		s.Control(client.Controls{Approve: 3})
		s.Set("app", "1", "v2")
		s.Up()
		settle()
		require.Equal(t, map[client.Ref]string{{Resource: "app", Key: "1"}: `"v2"`}, w.state())
		require.Equal(t, client.Controls{Approve: 3}, w.informer.Controls())
		w.stop()
	})
}

func TestWrongWiringOfATargetControllerIsOneErrorOfRun(t *testing.T) {
	t.Parallel()
	i := client.NewInformer(streamtest.NewServer("eu").Client(), "eu", client.InformerOptions{WriteAhead: true})
	handle := func(context.Context, client.Ref) (client.Result, error) { return client.Applied(), nil }
	first := client.NewTargetController(i, handle)
	client.NewTargetController(i, nil, list("1"), client.RememberResults("1"))
	client.NewController(i, "app", nothing, client.ExistingObjects(nil))
	client.Map(first, client.For[secret](i, "secret"), func(_, _ *secret) []string { return nil })
	require.Equal(t, []string{
		"WriteAhead needs a Store",
		"NewTargetController: Existing lists the keys of one resource: use ExistingObjects",
		"NewTargetController: RememberResults needs InformerOptions.Store",
		"NewTargetController: it has no handler",
		"NewTargetController: the informer has a controller already",
		`NewController for resource "app": ExistingObjects lists the objects of every resource: use Existing`,
		`NewController for resource "app": it has a controller already`,
		`Map for resource "secret": the controller is one of the target, and Map needs one of a resource`,
	}, strings.Split(i.Run(t.Context()).Error(), "\n"))
	require.PanicsWithValue(t, "client: NewTargetController after Run of the informer of target eu has begun: call it before",
		func() { client.NewTargetController(i, handle) })
	require.NoError(t, first.Run(canceled(t)))
	require.EqualError(t, first.Run(t.Context()), "the controller of target eu has begun before: make another informer and controller")
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
