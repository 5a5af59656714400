package driver_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// A watch may end as soon as it has begun, with or without an error. The pause after one that has worked is the first one again.
func TestF175_PausesBetweenWatchesGrowUntilOneWorks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var ends []time.Time
		var noted []string
		driver.Keep(ctx, func(worked func()) error {
			defer func() { ends = append(ends, time.Now()) }()
			for i := range ends[:max(len(ends)-1, 0)] {
				want := pace.Of([]time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second, time.Second}[i])
				require.InDelta(t, want, ends[i+1].Sub(ends[i]), float64(want)/5, i)
			}
			switch len(ends) {
			case 1:
				return errors.New("no")
			case 2:
				panic("no")
			case 6:
				worked()
			case 8:
				cancel()
			}
			return nil
		}, func(err error) {
			text := "it works"
			if err != nil {
				text, _, _ = strings.Cut(err.Error(), "\n")
			}
			noted = append(noted, text)
		})
		const ended = "the watch ended without an error"
		require.Equal(t, []string{ended, "no", "the driver panicked: no", ended, ended, ended, "it works", ended}, noted)
	})
}

// parts is a watch that runs, and may leave out a part.
type parts struct{ missing atomic.Pointer[error] }

func (*parts) Watch(ctx context.Context, _ func(resource, key string)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (p *parts) Unwatched() error {
	if err := p.missing.Load(); err != nil {
		return *err
	}
	return nil
}

func TestF174_WatchWithoutAPartOfItsTargetIsNoted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w, notes := &parts{}, make(chan error)
		done := make(chan struct{})
		go func() {
			defer close(done)
			driver.KeepWatching(ctx, w, nil, func(err error) { notes <- err })
		}()
		began := time.Now()
		require.NoError(t, <-notes)
		require.Equal(t, pace.Of(10*time.Second), time.Since(began))
		missing := errors.New("no Deployments")
		w.missing.Store(&missing)
		require.Equal(t, missing, <-notes)
		require.Equal(t, missing, <-notes)
		w.missing.Store(nil)
		require.NoError(t, <-notes)
		cancel()
		<-done
	})
}
