package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// watched is a far side that tells what is changed behind the agent's back, while it is watched.
type watched struct {
	*farSide

	changed func(resource, key string) // nil: there is no watch
	broken  error                      // ends a watch at once; nil: it goes on
	ends    chan error                 // ends the watch
	begun   int
}

func (f *watched) Watch(ctx context.Context, changed func(resource, key string)) error {
	f.mu.Lock()
	f.begun++
	broken := f.broken
	if f.changed = changed; broken != nil {
		f.changed = nil
	}
	f.mu.Unlock()
	if broken != nil {
		return broken
	}
	defer f.change(func() { f.changed = nil })
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-f.ends:
		return err
	}
}

// loses takes an object away behind the agent's back.
func (f *watched) loses(key string) {
	var changed func(resource, key string)
	f.change(func() {
		delete(f.objects, client.Ref{Resource: "app", Key: key})
		changed = f.changed
	})
	changed("app", key)
}

// watchedBed is a bed whose target is watched and has an object, with a sync far away.
func watchedBed(t *testing.T) (*bed, *watched, *running) {
	t.Helper()
	b := newBed(t)
	far := &watched{farSide: b.far, ends: make(chan error)}
	b.drv, b.lines = far, "  sync_interval: 168h\n"
	b.Set("app", "web", spec(1))
	r := b.start(t)
	after(time.Minute)
	require.Equal(t, `app/web={"n":1}`, b.far.has())
	b.far.called()
	return b, far, r
}

func TestAgentRepairsWhatTheDriverNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far, r := watchedBed(t)
		far.loses("web")
		far.changed("app", "unknown")
		synctest.Wait()
		require.Equal(t, []string{"web"}, b.far.called())
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.NoError(t, r.stop())
		require.Nil(t, far.changed, "the watch has ended")
	})
}

func TestAgentRepairsAfterThePause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far, r := watchedBed(t)
		b.Control(client.Controls{Paused: true})
		after(time.Second)
		far.loses("web")
		after(time.Hour)
		require.Empty(t, b.far.called())
		b.Control(client.Controls{})
		after(time.Second)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.NoError(t, r.stop())
	})
}

// What failed keeps its turn.
func TestAgentLeavesWhatFailsToItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far, r := watchedBed(t)
		b.far.change(func() { b.far.outcomes["web"] = driver.RetryAfter(time.Hour, errors.New("later")) })
		b.Set("app", "web", spec(2))
		after(time.Second)
		require.Equal(t, []string{"web"}, b.far.called())
		far.loses("web")
		after(time.Minute)
		require.Empty(t, b.far.called())
		require.NoError(t, r.stop())
	})
}

func TestAgentWatchesAgainAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		far := &watched{farSide: b.far, broken: errors.New("no watch here")}
		b.drv, b.lines = far, "  sync_interval: 168h\n"
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Hour)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		begun := far.begun
		require.Greater(t, begun, 60)
		require.Equal(t, "the watch fails: no watch here", r.target().Trouble)
		require.Empty(t, r.target().ready)
		require.Equal(t, "the watch fails: no watch here", b.Info().Trouble)

		b.far.change(func() { far.broken = nil })
		after(time.Minute)
		require.Equal(t, begun+1, far.begun)
		require.Empty(t, r.target().Trouble)
		far.loses("web")
		synctest.Wait()
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.NoError(t, r.stop())
	})
}

// What a restore has brought back is what no handler knows of.
func TestF170_AgentListsAFarSideThatWasSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far, r := watchedBed(t)
		far.change(func() { far.objects[client.Ref{Resource: "app", Key: "old"}] = `{"n":0}` })
		far.ends <- fmt.Errorf("watch: %w", driver.ErrRestored)
		after(time.Minute)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		require.Equal(t, 2, far.begun)
		require.NoError(t, r.stop())
	})
}

// More than there is room for is left to a listing.
func TestAgentListsWhenMuchIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far, r := watchedBed(t)
		const objects = 9000
		for i := range objects {
			b.Set("app", fmt.Sprint(i), spec(1))
		}
		after(time.Minute)
		require.Len(t, b.far.called(), objects)
		b.far.change(func() { clear(b.far.objects) })
		for i := range objects {
			far.changed("app", fmt.Sprint(i))
		}
		after(10 * time.Minute)
		require.Equal(t, objects+1, strings.Count(b.far.has(), "="))
		require.NoError(t, r.stop())
	})
}
