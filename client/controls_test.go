package client_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// While the target is paused no handler begins, whatever changes, also in the next process.
func TestPausedTargetIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		s.Control(client.Controls{Paused: true})
		w := wholeTarget(t, s, path, client.InformerOptions{})
		settle()
		require.Empty(t, w.called())
		require.Equal(t, client.Controls{Paused: true}, w.informer.Controls())
		s.Control(client.Controls{})
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		s.Control(client.Controls{Paused: true, Resync: 1})
		s.Reset("restored")
		s.Set("app", "1", "v2")
		settle()
		require.Empty(t, w.called())
		w.stop()

		s.Down()
		w = wholeTarget(t, s, path, client.InformerOptions{})
		settle()
		require.Empty(t, w.called())
		s.Control(client.Controls{})
		s.Up()
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		w.stop()
	})
}

// A resync has every object handled again and the far side listed again.
func TestResyncRunsEveryObjectAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		s.Set("app", "2", deployment{})
		f, _, _ := controlled(t, s, list("1", "2", "orphan"))
		settle()
		f.called()
		s.Control(client.Controls{Resync: 1})
		settle()
		require.ElementsMatch(t, []string{"1", "2", "orphan"}, f.called())
	})
}

// A retry has objects run at once that failed for good or wait, and no other one.
func TestRetryRunsWhatHasFailed(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		for _, key := range []string{"failed", "error", "progressing", "fine"} {
			s.Set("app", key, deployment{})
		}
		f, c, _ := controlled(t, s)
		f.on("failed", func() (client.Result, error) { return client.Failed("no"), nil })
		f.on("error", failure)
		f.on("progressing", func() (client.Result, error) { return client.Progressing("soon", time.Hour), nil })
		for range 10 {
			settle()
		}
		f.called()
		s.Control(client.Controls{Retry: 1})
		synctest.Wait()
		require.ElementsMatch(t, []string{"failed", "error", "progressing"}, f.called())
		require.Equal(t, 2, c.Status().Failing)
	})
}

// An approval that was given while the client was away is one of the deletes that it held then, not of those that it finds when it is back.
func TestApprovalIsOfTheDeletesBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		for n := range 3 {
			s.Set("app", fmt.Sprint(n), "v1")
		}
		opts := client.InformerOptions{WriteAhead: true}
		w := wholeTarget(t, s, path, opts, client.MaxDeletes(0))
		settle()
		lose(s, "app", "0")
		settle()
		require.Equal(t, 1, w.controller.Status().Held)
		w.stop()

		s.Control(client.Controls{Approve: 1})
		lose(s, "app", "1")
		w = wholeTarget(t, s, path, opts, client.MaxDeletes(0))
		settle()
		require.Equal(t, 1, w.controller.Status().Held)
		require.Contains(t, w.called(), "app/0")
		s.Control(client.Controls{Approve: 2})
		settle()
		require.Zero(t, w.controller.Status().Held)
		require.Equal(t, []string{"app/1"}, w.called())
		w.stop()
	})
}

// Numbers of a new client, and lower ones after a restore, order nothing.
func TestControlsThatOrderNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Control(client.Controls{Resync: 5, Retry: 5, Approve: 5})
		s.Set("app", "0", "v1")
		s.Set("app", "1", "v1")
		w := wholeTarget(t, s, "", client.InformerOptions{}, client.MaxDeletes(0))
		settle()
		require.Equal(t, []string{"app/0", "app/1"}, w.called())
		lose(s, "app", "0")
		settle()
		s.Control(client.Controls{Resync: 4, Retry: 4, Approve: 4})
		settle()
		require.Empty(t, w.called())
		require.Equal(t, 1, w.controller.Status().Held)
		require.Equal(t, client.Controls{Resync: 4, Retry: 4, Approve: 4}, w.informer.Controls())
		s.Control(client.Controls{Resync: 5, Retry: 4, Approve: 4})
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
	})
}
