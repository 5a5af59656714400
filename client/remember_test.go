package client_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// remembering starts a process that remembers its results.
func remembering(t *testing.T, s *streamtest.Server, path, fingerprint string) *whole {
	t.Helper()
	return wholeTarget(t, s, path, client.InformerOptions{WriteAhead: true}, client.RememberResults(fingerprint))
}

// What is applied for the spec that it has is not handled again after a restart, and everything else is.
func TestRememberedResultsAreNotMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		for _, key := range []string{"applied", "failed", "later", "changed", "drifted"} {
			s.Set("app", key, "v1")
		}
		w := remembering(t, s, path, "1")
		settle()
		w.on(client.Ref{Resource: "app", Key: "failed"}, failure)
		w.on(client.Ref{Resource: "app", Key: "later"}, func() (client.Result, error) { return client.Retry(0), nil })
		w.on(client.Ref{Resource: "app", Key: "drifted"}, failure)
		s.Set("app", "failed", "v2")
		s.Set("app", "later", "v2")
		w.controller.Enqueue(client.Ref{Resource: "app", Key: "drifted"})
		settle()
		w.stop()

		s.Set("app", "changed", "v2")
		w = remembering(t, s, path, "1")
		settle()
		require.Equal(t, []string{"app/changed", "app/drifted", "app/failed", "app/later"}, w.called())
		s.Reset("expired") // names the same objects with the same versions
		settle()
		require.Empty(t, w.called())
		w.stop()

		w = remembering(t, s, path, "1")
		settle()
		require.Empty(t, w.called())
		w.stop()
	})
}

// Results of another fingerprint do not count, also when the process ends before it has made them again.
func TestRememberedResultsAreThoseOfTheFingerprint(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		w := remembering(t, s, path, "1")
		settle()
		s.Control(client.Controls{Paused: true})
		settle()
		w.stop()
		w = remembering(t, s, path, "2")
		settle()
		require.NoError(t, w.controller.ReportInventory(t.Context()))
		_, err := s.WaitObserved(t.Context(), "app", "1", client.StateProgressing)
		require.NoError(t, err)
		w.stop()
		s.Control(client.Controls{})
		w = remembering(t, s, path, "2")
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		w.stop()
	})
}

// Results from before a resync do not count, also when the process ended before it had made all of it.
func TestResyncForgetsRememberedResults(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		w := remembering(t, s, path, "1")
		settle()
		w.controller.Suspend("the circuit is open")
		s.Control(client.Controls{Resync: 1})
		settle()
		require.NoError(t, w.controller.ReportInventory(t.Context()))
		_, err := s.WaitObserved(t.Context(), "app", "1", client.StateApplied)
		require.NoError(t, err, "the newest result is still reported")
		w.stop()
		w = remembering(t, s, path, "1")
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		w.stop()
	})
}

// A handler that began before a resync has not carried it out.
func TestResyncDoesNotCountAHandlerThatRuns(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		path := filepath.Join(t.TempDir(), "objects")
		s.Set("app", "1", "v1")
		w := wholeTarget(t, s, path, client.InformerOptions{WriteAhead: true}, client.RememberResults("1"))
		began, goOn := make(chan struct{}), make(chan struct{})
		w.on(client.Ref{Resource: "app", Key: "1"}, func() (client.Result, error) {
			close(began)
			<-goOn
			return client.Applied(), nil
		})
		<-began
		s.Control(client.Controls{Resync: 1, Paused: true})
		s.Control(client.Controls{Resync: 2, Paused: true})
		settle()
		close(goOn)
		settle()
		w.stop()
		s.Control(client.Controls{Resync: 2})
		w = remembering(t, s, path, "1")
		settle()
		require.Equal(t, []string{"app/1"}, w.called())
		w.stop()
	})
}
