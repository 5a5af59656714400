package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

// list is Existing of a far side that has keys.
func list(keys ...string) client.ControllerOption {
	return client.Existing(func(context.Context) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, key := range keys {
				if !yield(key, nil) {
					return
				}
			}
		}
	})
}

// C2. What the far side has and nothing wants is deleted, but not what a row wants and the server does not publish.
func TestExistingFindsWhatNothingWants(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		s.Keep("app", "blocked", "its spec is not valid")
		f, c, _ := controlled(t, s, list("1", "blocked", "orphan"))
		synctest.Wait()
		require.ElementsMatch(t, []string{"1", "orphan"}, f.called())
		require.Equal(t, client.ControllerStatus{}, c.Status())
		s.Reset("expired")
		synctest.Wait()
		require.Equal(t, []string{"orphan"}, f.called(), "it is asked for again after a reset")
		lose(s, "app", "blocked")
		synctest.Wait()
		require.ElementsMatch(t, []string{"blocked", "orphan"}, f.called(), "nothing wants it any more")
	})
}

func TestOrphansCountForMaxDeletes(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 5)
		keys := slices.Collect(func(yield func(string) bool) {
			for n := range 11 {
				if !yield(fmt.Sprint("orphan-", n)) {
					return
				}
			}
		})
		f, c, _ := controlled(t, s, list(keys...))
		synctest.Wait()
		require.Equal(t, 11, c.Status().Held)
		require.Len(t, f.called(), 5)
		require.Equal(t, 11, c.ApproveDeletes())
		synctest.Wait()
		require.ElementsMatch(t, keys, f.called())
	})
}

// The guard counts orphans before a handler can begin with one, also if the store is written as soon as they are found.
func TestOrphansAreCountedBeforeTheyAreWritten(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 5)
		goOn := make(chan struct{})
		logger := client.Logger(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.String() == "orphans_found" {
				<-goOn
			}
			return a
		}})))
		store := openStore(t, filepath.Join(t.TempDir(), "objects"))
		i := client.NewInformer(s.Client(logger), "eu", client.InformerOptions{Store: store, WriteAhead: true})
		f := newFarSide(i)
		c := client.NewController(i, "app", f.handle, list("orphan"), client.MaxDeletes(0))
		start(t, i.Run)
		start(t, c.Run)
		release := sync.OnceFunc(func() { close(goOn) })
		t.Cleanup(release) // before the controller is stopped
		synctest.Wait()
		s.Set("app", "5", deployment{}) // the store is written
		settle()
		require.NotContains(t, f.called(), "orphan")
		release()
		synctest.Wait()
		require.Equal(t, 1, c.Status().Held)
	})
}

// A list that fails counts for nothing, and is asked for again.
func TestExistingThatFailsIsAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		var calls atomic.Int32
		existing := client.Existing(func(context.Context) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				n := calls.Add(1)
				switch {
				case !yield("orphan", nil):
				case n == 1:
					yield("", errors.New("the far side does not answer"))
				case n == 2:
					panic("no")
				}
			}
		})
		f, _, _ := controlled(t, s, existing)
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load())
		require.Empty(t, f.called())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 3, calls.Load())
		require.Equal(t, []string{"orphan"}, f.called())
	})
}

// A list that was under way when a reset came is not compared with a snapshot that is under way.
func TestExistingConcludesNothingDuringAReset(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		goOn := make(chan struct{})
		existing := client.Existing(func(context.Context) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				<-goOn
				yield("2", nil)
			}
		})
		f, c, _ := controlled(t, s, existing, client.MaxDeletes(0))
		synctest.Wait()
		s.HoldAt("app")
		s.Reset("expired")
		synctest.Wait()
		goOn <- struct{}{}
		synctest.Wait()
		require.Zero(t, c.Status().Held)
		s.Set("app", "2", deployment{Image: "v2"})
		s.Release()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		require.Equal(t, []string{"1", "2"}, slices.Sorted(maps.Keys(f.state())))
		require.ElementsMatch(t, []string{"1", "2"}, f.called())
	})
}

// What was deleted while the list was read is no orphan.
func TestExistingMayBeOlderThanADelete(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		goOn := make(chan struct{})
		existing := client.Existing(func(context.Context) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				<-goOn
				yield("1", nil)
			}
		})
		f, c, _ := controlled(t, s, existing, client.MaxDeletes(0))
		synctest.Wait()
		s.Delete("app", "1")
		synctest.Wait()
		require.Equal(t, []string{"1", "1"}, f.called())
		close(goOn)
		synctest.Wait()
		require.Zero(t, c.Status().Held)
		require.Empty(t, f.called())
	})
}

// What a snapshot does not have, or only the far side has, is reported absent as of the newest version: the server knows no other one
// that its delete can be compared with.
func TestAbsenceIsReportedWithTheNewestVersion(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "lost", deployment{})
		newest := s.Set("app", "other", deployment{})
		controlled(t, s, list("lost", "orphan", "other"))
		orphan, err := s.WaitObserved(t.Context(), "app", "orphan", client.StateAbsent)
		require.NoError(t, err)
		require.Equal(t, newest, orphan.Version)
		newest = s.Set("app", "other", deployment{Image: "v2"})
		lose(s, "app", "lost")
		lost, err := s.WaitObserved(t.Context(), "app", "lost", client.StateAbsent)
		require.NoError(t, err)
		require.Equal(t, newest, lost.Version)
	})
}

// After a restore versions begin anew: the server refuses those from before it.
func TestVersionsFromBeforeARestoreAreNotReported(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		for _, key := range []string{"stays", "lost", "going"} {
			s.Set("app", key, deployment{})
		}
		f, _, _ := controlled(t, s)
		settle()
		f.on("going", failure)
		s.Delete("app", "going")
		settle()
		s.Lose("app", "lost")
		s.Reset("restored")
		f.on("going", nil)
		settle()
		for _, key := range []string{"going", "lost"} {
			o, err := s.WaitObserved(t.Context(), "app", key, client.StateAbsent)
			require.NoError(t, err)
			require.EqualValues(t, 1, o.Version, key)
		}
	})
}
