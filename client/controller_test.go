package client_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// farSide is what a controller keeps equal to the objects of resource app.
type farSide struct {
	mu      sync.Mutex // guards what follows
	has     map[string]deployment
	calls   []string // keys, in order
	apps    *client.Objects[deployment]
	before  func(key string) // is called at the beginning of each call
	results map[string]func() (client.Result, error)
}

func newFarSide(i *client.Informer) *farSide {
	return &farSide{has: map[string]deployment{}, apps: client.For[deployment](i, "app"), results: map[string]func() (client.Result, error){}}
}

func (f *farSide) handle(_ context.Context, key string) (client.Result, error) {
	if f.before != nil {
		f.before(key)
	}
	app, found, err := f.apps.Get(key)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, key)
	if result := f.results[key]; result != nil {
		return result()
	}
	switch {
	case err != nil:
		return client.Failed(err.Error()), nil
	case !found:
		delete(f.has, key)
		return client.Absent(), nil
	}
	f.has[key] = app
	return client.Applied(), nil
}

// on has the calls for a key return something else; nil ends that.
func (f *farSide) on(key string, result func() (client.Result, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.results[key] = result
}

func (f *farSide) state() map[string]deployment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.has)
}

// called returns the keys of the calls since the last time, in order.
func (f *farSide) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// controlled starts an informer with a controller of resource app.
func controlled(t *testing.T, s *streamtest.Server, options ...client.ControllerOption) (*farSide, *client.Controller, *client.Informer) {
	t.Helper()
	i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
	f := newFarSide(i)
	c := client.NewController(i, "app", f.handle, options...)
	start(t, i.Run)
	start(t, c.Run)
	return f, c, i
}

func TestControllerKeepsTheFarSideEqual(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		f, c, _ := controlled(t, s)
		applied, err := s.WaitObserved(t.Context(), "app", "1", client.StateApplied)
		require.NoError(t, err)
		require.Equal(t, client.Observation{Resource: "app", Key: "1", Version: 1, State: client.StateApplied}, applied)
		require.Equal(t, map[string]deployment{"1": {Image: "v1"}}, f.state())
		s.Set("app", "2", deployment{Image: "v1"})
		s.Set("app", "1", deployment{Image: "v2"})
		synctest.Wait()
		require.Equal(t, map[string]deployment{"1": {Image: "v2"}, "2": {Image: "v1"}}, f.state())
		version := s.Delete("app", "1")
		absent, err := s.WaitObserved(t.Context(), "app", "1", client.StateAbsent)
		require.NoError(t, err)
		require.Equal(t, version, absent.Version)
		require.Equal(t, map[string]deployment{"2": {Image: "v1"}}, f.state())
		require.Equal(t, client.ControllerStatus{}, c.Status())
	})
}

// C1. Nothing runs before the end of the snapshot, however slow another resource is, and however often it is cut.
func TestNothingRunsBeforeTheEndOfTheSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		s.Set("slow", "1", deployment{})
		s.HoldAt("slow")
		f, c, i := controlled(t, s)
		for range 3 {
			time.Sleep(time.Minute)
			require.Empty(t, f.called())
			s.Cut()
		}
		s.CutAfter(1)
		s.Release()
		<-i.Synced()
		synctest.Wait()
		require.Equal(t, []string{"1"}, f.called())
		require.Zero(t, c.Status().Queued)
	})
}

// C1. After a reset nothing begins before the next end, though work waits and objects change.
func TestNothingRunsDuringAReset(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		s.Set("app", "gone", deployment{Image: "v1"})
		s.Set("app", "same", deployment{Image: "v1"})
		s.Set("slow", "1", deployment{})
		s.HoldAt("slow")
		f, _, _ := controlled(t, s)
		f.on("1", func() (client.Result, error) { return client.Retry(time.Second), nil })
		s.Release()
		synctest.Wait()
		f.called()
		s.HoldAt("slow")
		lose(s, "app", "gone")
		s.Set("app", "1", deployment{Image: "v2"})
		time.Sleep(time.Minute)
		require.Empty(t, f.called())
		s.Release()
		synctest.Wait()
		require.ElementsMatch(t, []string{"1", "gone"}, f.called(), "what has not changed is no change")
		require.Equal(t, map[string]deployment{"same": {Image: "v1"}}, f.state())
	})
}

// After a restore the server may not have what was reported before.
func TestEverythingRunsAgainAfterARestore(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 3)
		f, _, _ := controlled(t, s)
		settle()
		f.called()
		s.CutAfter(2)
		s.Reset("restored")
		settle()
		require.Equal(t, []string{"0", "1", "2"}, slices.Sorted(slices.Values(f.called())))
		s.Reset("scope")
		settle()
		require.Empty(t, f.called())
	})
}

// C2. The mapper sees both sides: what has lost a reference is looked at as well as what has got it.
func TestMapGetsBothSidesOfAChange(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		type binding struct {
			App string `json:"app"`
		}
		s.Set("app", "a", deployment{})
		s.Set("app", "b", deployment{})
		s.Set("binding", "1", binding{App: "a"})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		c := client.NewController(i, "app", f.handle)
		client.Map(c, client.For[binding](i, "binding"), func(old, now *binding) (keys []string) {
			for _, side := range []*binding{old, now} {
				if side != nil && side.App == "panic" {
					panic("no")
				}
				if side != nil {
					keys = append(keys, side.App)
				}
			}
			return keys
		})
		start(t, i.Run)
		start(t, c.Run)
		expect := func(keys ...string) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, keys, slices.Sorted(slices.Values(f.called())))
		}
		expect("a", "b")
		s.Set("binding", "1", binding{App: "b"})
		expect("a", "b")
		s.Set("binding", "1", binding{App: "nothing"})
		expect("b")
		s.Set("binding", "1", "text")
		expect()
		s.Set("binding", "1", binding{App: "a"})
		expect("a")
		s.Set("binding", "1", binding{App: "panic"})
		s.Set("binding", "1", binding{App: "panic"})
		expect()
		s.Set("binding", "2", binding{App: "b"})
		expect("b")
		lose(s, "binding", "2")
		expect("b")
	})
}

// C3. A key never runs twice at once; what changes while it runs has it run once more.
func TestKeyNeverRunsTwiceAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		running := map[string]int{}
		var mu sync.Mutex
		f.before = func(key string) {
			mu.Lock()
			running[key]++
			if running[key] > 1 {
				t.Errorf("%s runs twice at once", key)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running[key]--
			mu.Unlock()
		}
		c := client.NewController(i, "app", f.handle, client.Workers(8))
		start(t, i.Run)
		start(t, c.Run)
		for range 50 {
			s.Set("app", "1", deployment{})
			synctest.Wait()
		}
		require.Equal(t, 1, c.Status().Running)
		time.Sleep(10 * time.Second)
		require.Equal(t, []string{"1", "1"}, f.called())
		for key := range 16 {
			s.Set("app", string(rune('a'+key)), deployment{})
		}
		synctest.Wait()
		require.Equal(t, client.ControllerStatus{Queued: 8, Running: 8}, c.Status())
		time.Sleep(10 * time.Second)
	})
}
