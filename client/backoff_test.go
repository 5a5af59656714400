package client_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

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
