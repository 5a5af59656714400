package client_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// An inventory has the newest result of every object and of every delete that was not made, and removes what is not there.
func TestInventoryIsComplete(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		for _, key := range []string{"applied", "changed", "failed", "going", "gone", "kept", "lost"} {
			s.Set("app", key, "v1")
		}
		w := wholeTarget(t, s, "", client.InformerOptions{}, client.MaxDeletes(0))
		settle()
		for _, key := range []string{"changed", "failed", "going"} {
			w.on(client.Ref{Resource: "app", Key: key}, failure)
		}
		s.Set("app", "changed", "v2")
		failed := s.Set("app", "failed", "v2")
		going := s.Delete("app", "going")
		s.Delete("app", "gone")
		settle()
		s.Lose("app", "kept")
		s.Keep("app", "kept", "its spec is not valid")
		lose(s, "app", "lost")
		settle()
		w.controller.Suspend("the circuit is open")
		changed := s.Set("app", "changed", "v3")
		waiting := s.Set("dns", "1", "v1")
		settle()
		require.NoError(t, s.Client().Report(t.Context(), "eu", client.Report{Observations: []client.Observation{
			{Resource: "app", Key: "of another client", Version: 1, State: client.StateApplied}}}))
		require.NoError(t, w.controller.ReportInventory(t.Context()))
		require.Equal(t, []client.Observation{
			{Resource: "app", Key: "applied", Version: 1, State: client.StateApplied},
			{Resource: "app", Key: "changed", Version: changed, State: client.StateProgressing, Message: "it was not handled yet"},
			{Resource: "app", Key: "failed", Version: failed, State: client.StateFailed, Message: "the far side does not answer"},
			{Resource: "app", Key: "going", Version: going, State: client.StateFailed, Message: "the far side does not answer"},
			{Resource: "app", Key: "kept", Version: waiting, State: client.StateProgressing,
				Message: "it is not published: the far side keeps what it has"},
			{Resource: "app", Key: "lost", Version: going + 1, State: client.StateProgressing,
				Message: "the delete waits for approval: MaxDeletes is 0, deletes from absence: 1"},
			{Resource: "dns", Key: "1", Version: waiting, State: client.StateProgressing, Message: "it was not handled yet"},
		}, s.Observations())
	})
}

// Before the server has confirmed the objects, and during a snapshot, there is no inventory: it could confirm a delete that was not made.
func TestThereIsNoInventoryOfIncompleteObjects(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		wholeTarget(t, s, path, client.InformerOptions{}).stopWhenSettled()
		s.Down()
		w := wholeTarget(t, s, path, client.InformerOptions{})
		<-w.informer.Synced()
		synctest.Wait()
		require.EqualError(t, w.controller.ReportInventory(t.Context()),
			"there is no inventory of target eu yet: the server is down (status 503)")
		s.Up()
		settle()
		require.NoError(t, w.controller.ReportInventory(t.Context()))
		s.HoldAt("app")
		s.Reset("expired")
		synctest.Wait()
		require.EqualError(t, w.controller.ReportInventory(t.Context()), "there is no inventory of target eu yet: a snapshot is under way")
		w.stop()
	})
}

// The inventory of one resource, or of a part of the target, is not complete: the rest is reported by others.
func TestInventoryOfAPartIsNotComplete(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 1)
		s.Set("dns", "1", "v1")
		require.NoError(t, s.Client().Report(t.Context(), "eu", client.Report{Observations: []client.Observation{
			{Resource: "dns", Key: "1", Version: 2, State: client.StateApplied}}}))
		_, c, _ := controlled(t, s)
		w := wholeTarget(t, s, "", client.InformerOptions{Resources: []string{"app"}})
		settle()
		require.NoError(t, c.ReportInventory(t.Context()))
		require.NoError(t, w.controller.ReportInventory(t.Context()))
		require.Len(t, s.Observations(), 2)
	})
}

// A report has 100,000 observations at most.
func TestLargeInventoryIsSeveralReports(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		const objects = 100_002
		seen := &reports{next: s.Transport()}
		c, err := client.New("http://streamtest", client.HTTPClient(&http.Client{Transport: seen}))
		require.NoError(t, err)
		i := client.NewInformer(c, "eu", client.InformerOptions{})
		w := &whole{informer: i, has: map[client.Ref]string{}}
		controller := client.NewTargetController(i, w.handle)
		for key := range objects {
			i.Take(t.Context(), client.Frame{Type: client.Upsert, Object: client.Object{
				Resource: "app", Key: fmt.Sprint(key), Version: int64(key + 1), Spec: []byte("1")}})
		}
		i.Take(t.Context(), client.Frame{Type: client.EndOfSnapshot, Bookmark: "b", Object: client.Object{Version: objects}})
		require.NoError(t, controller.ReportInventory(t.Context()))
		require.Equal(t, []int{100_000, 2}, seen.sizes)
		require.Len(t, s.Observations(), objects)
	})
}

// A failure that lasts is reported once. When the server may have lost it, it is reported again.
func TestResultsThatAreTheSameAreReportedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		failing := &reports{next: s.Transport()}
		c, err := client.New("http://streamtest", client.HTTPClient(&http.Client{Transport: failing}))
		require.NoError(t, err)
		i := client.NewInformer(c, "eu", client.InformerOptions{})
		f := newFarSide(i)
		f.on("1", failure)
		controller := client.NewController(i, "app", f.handle)
		start(t, i.Run)
		start(t, controller.Run)
		for range 5 {
			settle()
		}
		require.Greater(t, len(f.called()), 3)
		require.Equal(t, []int{1}, failing.sizes)
		s.Reset("expired")
		settle()
		require.Equal(t, []int{1}, failing.sizes)
		s.Reset("restored")
		settle()
		require.Equal(t, []int{1, 1}, failing.sizes)
		f.on("1", nil)
		s.Control(client.Controls{Retry: 1})
		settle()
		f.on("1", failure)
		s.Control(client.Controls{Retry: 1, Resync: 1})
		settle()
		require.Equal(t, []int{1, 1, 1, 1}, failing.sizes)
	})
}
