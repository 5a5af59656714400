package client_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// While the store cannot be written, no handler begins for what it does not have. What it has goes on.
func TestWriteAheadWaitsForTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", "v1")
		store := openStore(t, filepath.Join(t.TempDir(), "objects"))
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: store, WriteAhead: true})
		w := &whole{has: map[client.Ref]string{}, informer: i}
		c := client.NewTargetController(i, w.handle)
		stop := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { stop <- i.Run(ctx) }()
		start(t, c.Run)
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		require.NoError(t, store.Close())
		s.Set("app", "2", "v1")
		s.Delete("app", "1")
		settle()
		c.Enqueue(client.Ref{Resource: "app", Key: "2"})
		settle()
		require.Empty(t, w.called())
		require.ErrorContains(t, i.Status().Err, "store ")
		cancel()
		require.Error(t, <-stop)
	})
}

// Changes are handed on as soon as they are written, whenever the time before was.
func TestWriteAheadDoesNotRest(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		w := wholeTarget(t, s, filepath.Join(t.TempDir(), "objects"), client.InformerOptions{WriteAhead: true})
		synctest.Wait()
		for n := range 5 {
			s.Set("app", "1", n)
			synctest.Wait()
			require.Equal(t, map[client.Ref]string{{Resource: "app", Key: "1"}: fmt.Sprint(n)}, w.state())
		}
		w.stop()
	})
}

// A batch of changes costs one transaction, and results are written at most once a second.
func TestWriteAheadCostsOneTransactionForEachCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 500)
		s.HoldAt("app")
		store := openStore(t, filepath.Join(t.TempDir(), "objects"))
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: store, WriteAhead: true})
		f := newFarSide(i)
		c := client.NewController(i, "app", f.handle, client.RememberResults(""))
		start(t, i.Run)
		start(t, c.Run)
		synctest.Wait()
		before := store.Transactions()
		s.Release()
		synctest.Wait()
		require.Len(t, f.state(), 500)
		require.Equal(t, 1, store.Transactions()-before)
		settle()
		before = store.Transactions()
		s.Down()
		for n := range 500 {
			s.Set("app", fmt.Sprint(n), deployment{Image: "v2"})
		}
		s.Up()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		require.Equal(t, deployment{Image: "v2"}, f.state()["499"])
		require.Equal(t, 3, store.Transactions()-before, "the changes, their results, and a checkpoint of the idle stream")
	})
}

// An object that changes again while it is written is handled as it was written: one that changes all the time would never be handled otherwise.
func TestWriteAheadHandlesAnObjectThatChangesAllTheTime(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		store := openStore(t, filepath.Join(t.TempDir(), "objects"))
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{Store: store, WriteAhead: true})
		w := &whole{has: map[client.Ref]string{}, informer: i}
		c := client.NewTargetController(i, w.handle)
		start(t, c.Run)
		change := func(version int64) {
			i.Take(t.Context(), client.Frame{Type: client.Upsert, Object: client.Object{
				Resource: "app", Key: "1", Version: version, Spec: []byte(fmt.Sprint(version))}})
			synctest.Wait()
			require.Empty(t, w.called())
		}
		change(1)
		i.Take(t.Context(), client.Frame{Type: client.EndOfSnapshot, Bookmark: "b", Object: client.Object{Version: 1}})
		require.NoError(t, i.SaveWhile(func() {
			c.Enqueue(client.Ref{Resource: "app", Key: "1"})
			synctest.Wait()
			require.Empty(t, w.called())
			change(2)
		}))
		synctest.Wait()
		require.Equal(t, []string{"app/1"}, w.called())
		require.Equal(t, map[client.Ref]string{{Resource: "app", Key: "1"}: "1"}, w.state())
		require.Empty(t, c.Applied(), "what was applied is not the newest")
		change(3)
		require.NoError(t, i.SaveWhile(func() {}))
		synctest.Wait()
		require.Equal(t, []string{"app/1"}, w.called())
		require.Equal(t, map[client.Ref]string{{Resource: "app", Key: "1"}: "3"}, w.state())
	})
}

// A handler never sees what the store does not have: after a crash, the one before would be handled after it.
func TestHandlersSeeWhatIsWritten(t *testing.T) {
	bubble(t, func(t *testing.T, _ *streamtest.Server) {
		c, err := client.New("http://127.0.0.1:1")
		require.NoError(t, err)
		store := openStore(t, filepath.Join(t.TempDir(), "objects"))
		i := client.NewInformer(c, "eu", client.InformerOptions{Store: store, WriteAhead: true})
		begun, go_ := make(chan struct{}), make(chan struct{})
		var seen []string
		controller := client.NewTargetController(i, func(ctx context.Context, object client.Ref) (client.Result, error) {
			begun <- struct{}{}
			<-go_
			o, _ := i.Object(object.Resource, object.Key)
			typed, _, err := client.For[int](i, object.Resource).Get(object.Key)
			seen = append(seen, fmt.Sprintf("%s %d", o.Spec, typed))
			return client.Applied(), err
		})
		start(t, controller.Run)
		upsert := func(n int64) {
			i.Take(t.Context(), client.Frame{Type: client.Upsert, Object: client.Object{Resource: "app", Key: "1", Version: n, Spec: []byte(fmt.Sprint(n))}})
		}
		upsert(1)
		i.Take(t.Context(), client.Frame{Type: client.EndOfSnapshot, Bookmark: "b", Object: client.Object{Version: 1}})
		for n := range 3 {
			require.NoError(t, i.SaveWhile(func() {}))
			<-begun
			upsert(int64(n + 2))
			go_ <- struct{}{}
			synctest.Wait()
		}
		require.Equal(t, []string{"1 1", "2 2", "3 3"}, seen)
	})
}

// world is a far side and processes that are killed at any time. A process begins with the store as the one before has left it.
type world struct {
	t      *testing.T
	server *streamtest.Server
	random *rand.Rand
	dir    string
	path   string // of the store
	number int    // of stores
	stop   func()

	mu      sync.Mutex // guards what follows; handlers hold it
	store   *client.Store
	killed  int // processes; calls of theirs do nothing
	has     map[client.Ref]string
	touched map[client.Ref]bool // what the far side may have
	luck    *rand.Rand          // of handlers
}

// begin starts a process.
func (w *world) begin() {
	store, err := client.OpenStore(w.path)
	require.NoError(w.t, err)
	w.mu.Lock()
	w.store = store
	me := w.killed
	w.mu.Unlock()
	i := client.NewInformer(w.server.Client(), "eu", client.InformerOptions{Store: store, WriteAhead: true})
	handle := func(_ context.Context, r client.Ref) (client.Result, error) { return w.handle(i, me, r) }
	c := client.NewTargetController(i, handle, client.MaxDeletes(-1), client.RememberResults("1"))
	stopInformer, stop := start(w.t, i.Run), start(w.t, c.Run)
	w.stop = func() {
		stop()
		stopInformer()
		require.NoError(w.t, store.Close())
	}
}

// handle requires that the store has every object that the far side may have, and the object of the call.
func (w *world) handle(i *client.Informer, me int, r client.Ref) (client.Result, error) {
	time.Sleep(time.Duration(len(r.Key)) * 100 * time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	if me != w.killed {
		return client.Retry(time.Minute), nil
	}
	w.touched[r] = true
	for touched := range w.touched {
		if !w.store.Has(touched) {
			w.t.Errorf("the store does not have %v, which the far side may have", touched)
		}
	}
	o, wanted := i.Object(r.Resource, r.Key)
	if w.luck.IntN(4) == 0 {
		return client.Failed("the far side does not answer"), nil
	}
	if !wanted {
		delete(w.has, r)
		delete(w.touched, r)
		return client.Absent(), nil
	}
	w.has[r] = string(o.Spec)
	return client.Applied(), nil
}

// kill ends a process: the next one has the store as it is now.
func (w *world) kill() {
	w.number++
	next := filepath.Join(w.dir, fmt.Sprint(w.number))
	w.mu.Lock()
	require.NoError(w.t, w.store.CopyTo(next))
	w.killed++
	w.mu.Unlock()
	w.stop()
	w.path = next
}

// step does something at random.
func (w *world) step() {
	s, n := w.server, w.random.IntN
	resource, key := []string{"app", "dns"}[n(2)], []string{"a", "b", "ccccc", "ddd"}[n(4)]
	switch n(16) {
	case 0, 1, 2, 3:
		s.Set(resource, key, n(3))
	case 4, 5:
		s.Delete(resource, key)
	case 6:
		s.Lose(resource, key)
		s.Reset([]string{"expired", "restored", "unknown", "scope"}[n(4)])
	case 7:
		s.Keep(resource, key, "its spec is not valid")
	case 8:
		s.Delete(resource, key)
		s.Expire()
	case 9:
		s.Down()
	case 10:
		s.Up()
	case 11:
		s.CutAfter(1 + n(8))
	case 12:
		w.kill()
		w.begin()
	default:
		time.Sleep(time.Duration(n(2000)) * time.Millisecond)
	}
	if n(2) == 0 {
		synctest.Wait()
	}
}

// Wherever a process is killed, the store has what the far side may have, and the next process makes the far side equal without a list.
func TestNothingIsForgottenWhereverAProcessIsKilled(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *streamtest.Server) {
				w := &world{
					t: t, server: s, random: rand.New(rand.NewPCG(seed, 1)), luck: rand.New(rand.NewPCG(seed, 2)), dir: t.TempDir(),
					has: map[client.Ref]string{}, touched: map[client.Ref]bool{},
				}
				w.path = filepath.Join(w.dir, "0")
				w.begin()
				for range 300 {
					w.step()
				}
				s.Up()
				want := map[client.Ref]string{}
				for _, resource := range []string{"app", "dns"} {
					for n, key := range []string{"a", "b", "ccccc", "ddd"} {
						if n < 2 {
							s.Set(resource, key, "last")
							want[client.Ref{Resource: resource, Key: key}] = `"last"`
						} else {
							s.Lose(resource, key)
						}
					}
				}
				s.Reset("expired")
				w.kill()
				w.begin()
				for range 20 { // what has failed rests until the next snapshot
					s.Reset("expired")
					settle()
				}
				w.mu.Lock()
				got := maps.Clone(w.has)
				w.mu.Unlock()
				require.Equal(t, want, got)
				w.stop()
			})
		})
	}
}
