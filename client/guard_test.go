package client_test

import (
	"fmt"
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

// fill publishes apps with the keys from 0 on.
func fill(s *streamtest.Server, n int) {
	for key := range n {
		s.Set("app", fmt.Sprint(key), deployment{})
	}
}

// empty has the server lose apps.
func empty(s *streamtest.Server, n int) {
	for key := range n {
		s.Lose("app", fmt.Sprint(key))
	}
	s.Reset("expired")
}

// lose has the server lose an object, without a frame for that.
func lose(s *streamtest.Server, resource, key string) {
	s.Lose(resource, key)
	s.Reset("expired")
}

// C2. Too many deletes from absence wait, all of them, and show. An approval lets them pass.
func TestDeletesFromAbsenceWaitForApproval(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 20)
		f, c, i := controlled(t, s)
		synctest.Wait()
		require.Len(t, f.state(), 20)
		s.HoldAt("app")
		empty(s, 11)
		s.Release()
		synctest.Wait()
		require.Equal(t, 9, i.Status().Objects)
		require.Len(t, f.state(), 20)
		require.Equal(t, client.ControllerStatus{Held: 11}, c.Status())
		o, err := s.WaitObserved(t.Context(), "app", "0", client.StateProgressing)
		require.NoError(t, err)
		require.Equal(t, "the delete waits for approval: MaxDeletes is 10, deletes from absence: 11", o.Message)

		s.Set("app", "1", deployment{Image: "back"}) // no delete any more
		s.Delete("app", "2")                         // this one has passed the guard of the server
		synctest.Wait()
		require.Equal(t, client.ControllerStatus{Held: 9}, c.Status())
		require.Len(t, f.state(), 19)
		require.Equal(t, deployment{Image: "back"}, f.state()["1"])

		f.called()
		require.Equal(t, 9, c.ApproveDeletes())
		synctest.Wait()
		require.Len(t, f.called(), 9)
		require.Len(t, f.state(), 10)
		require.Equal(t, client.ControllerStatus{}, c.Status())
		require.Zero(t, c.ApproveDeletes())
		_, err = s.WaitObserved(t.Context(), "app", "0", client.StateAbsent)
		require.NoError(t, err)
	})
}

func TestMaxDeletes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                string
		objects, gone, held int
		opts                []client.ControllerOption
	}{
		{name: "AreTenOfFew", objects: 20, gone: 10},
		{name: "AreATenthOfMany", objects: 200, gone: 20},
		{name: "AreNoMoreThanATenthOfMany", objects: 200, gone: 21, held: 21},
		{name: "MayBeNone", objects: 20, gone: 1, held: 1, opts: []client.ControllerOption{client.MaxDeletes(0)}},
		{name: "MayHaveNoLimit", objects: 20, gone: 20, opts: []client.ControllerOption{client.MaxDeletes(-1)}},
		{name: "MayBeMore", objects: 20, gone: 15, opts: []client.ControllerOption{client.MaxDeletes(15)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *streamtest.Server) {
				fill(s, c.objects)
				f, controller, _ := controlled(t, s, c.opts...)
				synctest.Wait()
				s.HoldAt("app")
				empty(s, c.gone)
				s.Release()
				synctest.Wait()
				require.Equal(t, c.held, controller.Status().Held)
				require.Len(t, f.state(), c.objects-c.gone+c.held)
			})
		})
	}
}

// Deletes that the server sends are not held: they have passed its guard.
func TestSentDeletesAreNotHeld(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 20)
		f, _, _ := controlled(t, s, client.MaxDeletes(0))
		synctest.Wait()
		for key := range 20 {
			s.Delete("app", fmt.Sprint(key))
		}
		synctest.Wait()
		require.Empty(t, f.state())
	})
}

// A handler that began before a reset does not find its object gone before the guard has counted it.
func TestRunningHandlerSeesNoAbsenceBeforeTheGuard(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{Image: "v1"})
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		goOn := make(chan struct{})
		f.before = func(string) { <-goOn }
		c := client.NewController(i, "app", f.handle, client.MaxDeletes(0))
		start(t, i.Run)
		start(t, c.Run)
		release := sync.OnceFunc(func() { close(goOn) })
		t.Cleanup(release) // before the controller is stopped
		synctest.Wait()
		lose(s, "app", "1")
		synctest.Wait()
		require.Equal(t, "handlers of objects that are gone still run", i.Status().Waiting)
		release()
		synctest.Wait()
		require.Equal(t, map[string]deployment{"1": {Image: "v1"}}, f.state())
		require.Equal(t, client.ControllerStatus{Held: 1}, c.Status())
	})
}

// A delete that was not made yet waits while a row wants the object again and the server does not publish it.
func TestKeepHoldsADeleteBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 2)
		s.Keep("app", "blocked", "its spec is not valid")
		f, c, _ := controlled(t, s, list("blocked"), client.MaxDeletes(0))
		settle()
		f.on("0", func() (client.Result, error) { return client.Failed("the far side does not answer"), nil })
		s.Delete("app", "0")
		settle()
		f.called()
		s.Lose("app", "0")
		s.Keep("app", "0", "its spec is not valid")
		s.Reset("expired")
		settle()
		require.Empty(t, f.called())
		require.Zero(t, c.Status().Held)
		lose(s, "app", "0")
		settle()
		require.Equal(t, []string{"0"}, f.called())
	})
}

// A delete that the server has sent and that was not made yet does not count for MaxDeletes.
func TestPendingDeletesDoNotCount(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 3)
		f, c, _ := controlled(t, s, client.MaxDeletes(1))
		settle()
		f.on("0", func() (client.Result, error) { return client.Failed("the far side does not answer"), nil })
		s.Delete("app", "0")
		settle()
		lose(s, "app", "1")
		settle()
		require.Zero(t, c.Status().Held)
		require.Equal(t, []string{"0", "2"}, slices.Sorted(maps.Keys(f.state())))
	})
}

// An object that came back and went again while its delete was made is deleted again, with the newer version.
func TestDeleteIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 1)
		i := client.NewInformer(s.Client(), "eu", client.InformerOptions{})
		f := newFarSide(i)
		c := client.NewController(i, "app", f.handle)
		start(t, i.Run)
		start(t, c.Run)
		settle()
		f.called()
		f.on("0", func() (client.Result, error) {
			time.Sleep(time.Second)
			return client.Absent(), nil
		})
		s.Delete("app", "0")
		synctest.Wait()
		s.Set("app", "0", deployment{})
		version := s.Delete("app", "0")
		settle()
		require.Equal(t, []string{"0", "0"}, f.called())
		o, err := s.WaitObserved(t.Context(), "app", "0", client.StateAbsent)
		require.NoError(t, err)
		require.Equal(t, version, o.Version)
	})
}
