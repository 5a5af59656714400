package client_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

func openStore(t testing.TB, path string) *client.Store {
	t.Helper()
	store, err := client.OpenStore(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) }) // also when it was closed before
	return store
}

// process is a process that keeps its objects in a store.
type process struct {
	*farSide

	informer   *client.Informer
	controller *client.Controller
	stop       func()
}

// stopWhenSettled stops a process that has done its work.
func (p *process) stopWhenSettled() {
	settle()
	p.stop()
}

// settle waits until nothing is left to do, and the store is written.
func settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// restart starts a process.
func restart(t *testing.T, s *streamtest.Server, path string, opts client.InformerOptions, options ...client.ControllerOption) *process {
	t.Helper()
	store, err := client.OpenStore(path)
	require.NoError(t, err)
	opts.Store = store
	i := client.NewInformer(s.Client(), "eu", opts)
	p := &process{farSide: newFarSide(i), informer: i}
	p.controller = client.NewController(i, "app", p.handle, options...)
	stopInformer, stop := start(t, i.Run), start(t, p.controller.Run)
	p.stop = func() {
		stop()
		stopInformer()
		require.NoError(t, store.Close())
	}
	return p
}

// C1. What a store has is complete: it needs no server. A snapshot that is under way is not in it.
func TestStoreNeedsNoServer(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", deployment{Image: "v1"})
		s.Set("app", "2", deployment{Image: "v1"})
		p := restart(t, s, path, client.InformerOptions{})
		settle()
		require.Len(t, p.state(), 2)
		s.Set("app", "1", deployment{Image: "v2"})
		s.Delete("app", "2")
		settle()
		require.Equal(t, map[string]deployment{"1": {Image: "v2"}}, p.state())
		p.stop()

		s.Down()
		p = restart(t, s, path, client.InformerOptions{})
		<-p.informer.Synced()
		settle()
		require.Equal(t, map[string]deployment{"1": {Image: "v2"}}, p.state())
		require.EqualValues(t, 4, p.informer.Status().Revision)
		require.NotEmpty(t, p.informer.Status().Waiting)

		s.Reset("unknown")
		s.HoldAt("app")
		s.Set("a", "first", deployment{}) // the snapshot sends it, and is held then
		s.Up()
		time.Sleep(time.Minute)
		require.Equal(t, 2, p.informer.Status().Objects)
		p.stop()

		s.Down()
		p = restart(t, s, path, client.InformerOptions{})
		<-p.informer.Synced()
		require.Equal(t, 1, p.informer.Status().Objects)
		s.Release()
		s.Up()
		time.Sleep(time.Minute)
		require.Equal(t, 2, p.informer.Status().Objects)
		p.stop()
	})
}

// C1. A process that ended within its first snapshot has nothing.
func TestStoreOfAnUnfinishedSnapshotIsEmpty(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		fill(s, 150) // more than a page, after which there is a bookmark
		s.Set("slow", "1", deployment{})
		s.HoldAt("slow")
		p := restart(t, s, path, client.InformerOptions{})
		settle()
		p.stop()
		s.Down()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.False(t, closed(p.informer.Synced()))
		require.Empty(t, p.called())
		p.stop()
	})
}

// C2. What was deleted while the process was down is found, and what the far side has not deleted yet is not forgotten.
func TestStoreFindsWhatWasDeletedWhileTheProcessWasDown(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		for _, key := range []string{"sent", "absent", "pending", "stays"} {
			s.Set("app", key, deployment{})
		}
		p := restart(t, s, path, client.InformerOptions{})
		p.on("pending", func() (client.Result, error) { return client.Failed("the far side does not answer"), nil })
		settle()
		s.Delete("app", "pending")
		settle()
		p.stop()

		s.Down()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.ElementsMatch(t, []string{"sent", "absent", "pending", "stays"}, p.called())
		p.stop()

		s.Delete("app", "sent")
		s.Up()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.NotContains(t, p.called(), "pending", "its delete was made")
		require.Equal(t, []string{"absent", "stays"}, slices.Sorted(maps.Keys(p.state())))
		p.stop()

		s.Delete("app", "absent")
		s.Expire()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.Contains(t, p.called(), "absent")
		require.Equal(t, []string{"stays"}, slices.Sorted(maps.Keys(p.state())))
		p.stop()
	})
}

// C2. What a restart finds absent counts for MaxDeletes, and is held over the next restart.
func TestHeldDeletesStayHeld(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		fill(s, 12)
		restart(t, s, path, client.InformerOptions{}).stopWhenSettled()
		for key := range 11 {
			s.Delete("app", fmt.Sprint(key))
		}
		s.Expire()
		for range 2 {
			p := restart(t, s, path, client.InformerOptions{})
			settle()
			require.Equal(t, 11, p.controller.Status().Held)
			p.stop()
			s.Down()
		}
		p := restart(t, s, path, client.InformerOptions{})
		settle()
		p.called()
		require.Equal(t, 11, p.controller.ApproveDeletes())
		p.stop()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.Zero(t, p.controller.Status().Held)
		p.stop()
	})
}

// C1. A token that may read less than before does not prove that objects are gone, also not for the next process.
func TestDeletesAfterAChangeOfRightsAreHeld(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		fill(s, 3)
		p := restart(t, s, path, client.InformerOptions{})
		settle()
		s.Lose("app", "0")
		s.Reset("scope")
		settle()
		o, err := s.WaitObserved(t.Context(), "app", "0", client.StateProgressing)
		require.NoError(t, err)
		require.Equal(t, "the delete waits for approval: the rights of the token have changed, deletes from absence: 1", o.Message)
		p.stop()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.Equal(t, 1, p.controller.Status().Held)
		require.Equal(t, 1, p.controller.ApproveDeletes())
		settle()
		require.Equal(t, []string{"0", "1", "2"}, slices.Sorted(slices.Values(p.called())))
		p.stop()
		p = restart(t, s, path, client.InformerOptions{})
		settle()
		require.NotContains(t, p.called(), "0")
		s.Reset("scope")
		settle()
		lose(s, "app", "1") // which has nothing to do with rights
		settle()
		require.Equal(t, []string{"1"}, p.called())
		p.stop()
	})
}

// A store may be behind: what the far side has beyond it is no orphan until the server has confirmed that.
func TestExistingIsComparedWithWhatTheServerHasConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", deployment{})
		restart(t, s, path, client.InformerOptions{}).stopWhenSettled()
		s.Set("app", "2", deployment{}) // a process applied it and ended before it was stored
		s.Down()
		p := restart(t, s, path, client.InformerOptions{}, list("1", "2", "orphan"))
		settle()
		p.controller.List()
		settle()
		require.Equal(t, []string{"1"}, p.called())
		s.Up()
		settle()
		require.ElementsMatch(t, []string{"2", "orphan"}, p.called())
		require.Equal(t, []string{"1", "2"}, slices.Sorted(maps.Keys(p.state())))
		p.stop()
	})
}

// What a row wants and the server does not publish is left as it is, also by the next process.
func TestStoreKeepsKeeps(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", deployment{})
		s.Keep("app", "blocked", "its spec is not valid")
		for range 2 {
			p := restart(t, s, path, client.InformerOptions{}, list("1", "blocked"))
			settle()
			require.Equal(t, []string{"1"}, p.called())
			p.stop()
		}
		s.Set("app", "blocked", deployment{})
		restart(t, s, path, client.InformerOptions{}).stopWhenSettled()
		s.Delete("app", "blocked")
		p := restart(t, s, path, client.InformerOptions{})
		settle()
		require.Contains(t, p.called(), "blocked")
		require.Equal(t, []string{"1"}, slices.Sorted(maps.Keys(p.state())))
		p.stop()
	})
}
