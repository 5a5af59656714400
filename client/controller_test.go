package client_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
func controlled(t *testing.T, s *streamtest.Server, opts client.InformerOptions, options ...client.ControllerOption) (*farSide, *client.Controller, *client.Informer) {
	t.Helper()
	i := client.NewInformer(s.Client(), "eu", opts)
	f := newFarSide(i)
	c := client.NewController(i, "app", f.handle, options...)
	start(t, i.Run)
	start(t, c.Run)
	return f, c, i
}

func TestControllerKeepsTheFarSideEqual(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		f, c, _ := controlled(t, s, client.InformerOptions{})
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
		f, c, i := controlled(t, s, client.InformerOptions{})
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
		f, _, _ := controlled(t, s, client.InformerOptions{})
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
		f, _, _ := controlled(t, s, client.InformerOptions{})
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

// C3. A panic is the error of one object, with its stack in the log.
func TestPanicIsContained(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		var log bytes.Buffer
		i := client.NewInformer(s.Client(client.Logger(slog.New(slog.NewTextHandler(&log, nil)))), "eu", client.InformerOptions{})
		f := newFarSide(i)
		f.on("bad", func() (client.Result, error) { panic("no") })
		f.on("empty", func() (client.Result, error) { return client.Result{}, nil })
		c := client.NewController(i, "app", f.handle)
		stopInformer, stop := start(t, i.Run), start(t, c.Run)
		s.Set("app", "bad", deployment{})
		s.Set("app", "empty", deployment{})
		s.Set("app", "good", deployment{})
		for key, want := range map[string]string{"bad": "panic: no", "empty": "the handler has returned neither a result nor an error"} {
			o, err := s.WaitObserved(t.Context(), "app", key, client.StateFailed)
			require.NoError(t, err)
			require.Equal(t, want, o.Message)
		}
		_, err := s.WaitObserved(t.Context(), "app", "good", client.StateApplied)
		require.NoError(t, err)
		require.Equal(t, 2, c.Status().Failing)
		stop()
		stopInformer()
		require.Contains(t, log.String(), "handler_panicked")
		require.Contains(t, log.String(), "controller_test.go")
	})
}

// C3. The pause after an error grows from the first one to the longest, and a change ends it.
func TestErrorsAreRetriedWithBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		var at []time.Time
		f.on("1", func() (client.Result, error) {
			at = append(at, time.Now())
			return client.Result{}, errors.New("not yet")
		})
		c := client.NewController(i, "app", f.handle)
		start(t, i.Run)
		start(t, c.Run)
		time.Sleep(time.Hour)
		synctest.Wait()
		for n := range len(at) - 1 {
			most := min(time.Second<<n, 5*time.Minute)
			pause := at[n+1].Sub(at[n])
			require.LessOrEqual(t, pause, most, n)
			require.GreaterOrEqual(t, pause, most/2, n)
		}
		require.Greater(t, len(at), 15)
		o, err := s.WaitObserved(t.Context(), "app", "1", client.StateFailed)
		require.NoError(t, err)
		require.Equal(t, "not yet", o.Message)
		n := len(at)
		f.on("1", nil)
		s.Set("app", "1", deployment{Image: "v2"})
		synctest.Wait()
		require.Len(t, at, n)
		require.Equal(t, map[string]deployment{"1": {Image: "v2"}}, f.state())
		f.called()
		time.Sleep(time.Hour)
		require.Empty(t, f.called())
	})
}

func TestResultsSayWhenToLookAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		f.on("progressing", func() (client.Result, error) { return client.Progressing("starts", 10*time.Second), nil })
		f.on("retry", func() (client.Result, error) { return client.Retry(20 * time.Second), nil })
		f.on("failed", func() (client.Result, error) { return client.Failed("bad image"), nil })
		f.on("impatient", func() (client.Result, error) { return client.Retry(0), nil })
		for key := range f.results {
			s.Set("app", key, deployment{})
		}
		c := client.NewController(i, "app", f.handle)
		start(t, i.Run)
		start(t, c.Run)
		time.Sleep(time.Minute - time.Second)
		calls := map[string]int{}
		for _, key := range f.called() {
			calls[key]++
		}
		require.Equal(t, 6, calls["progressing"])
		require.Equal(t, 3, calls["retry"])
		require.Equal(t, 1, calls["failed"])
		require.Less(t, calls["impatient"], 10, "without a time it is the back-off")
		observed := map[string]string{}
		for _, o := range s.Observations() {
			observed[o.Key] = string(o.State) + " " + o.Message
		}
		require.Equal(t, map[string]string{"progressing": "progressing starts", "failed": "failed bad image"}, observed)
		require.Equal(t, 2, c.Status().Failing)

		s.Set("app", "progressing", deployment{Image: "v2"}) // 1 s before its next turn, which counts from here then
		time.Sleep(10*time.Second - time.Nanosecond)
		progressing := slices.DeleteFunc(f.called(), func(key string) bool { return key != "progressing" })
		require.Len(t, progressing, 1)

		s.Reset("expired")
		synctest.Wait()
		require.Contains(t, f.called(), "failed", "the end of a snapshot has it run again")
	})
}

// A handler that fails because the controller stops has not failed.
func TestStopIsNoFailure(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		c := client.NewController(i, "app", func(ctx context.Context, _ string) (client.Result, error) {
			<-ctx.Done()
			return client.Result{}, ctx.Err()
		})
		start(t, i.Run)
		stop := start(t, c.Run)
		synctest.Wait()
		require.Equal(t, 1, c.Status().Running)
		stop()
		require.Empty(t, s.Observations())
	})
}
