package agent

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// F162: what applies remove behind an agent passes a guard there: the server's counts objects only.
func TestF162_RemovalsWithinAppliesPassTheGuardOfAnAgent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines string
		pass  int
	}{
		"MaxDeletes": {"  guard: {max_deletes: 4}\n", 2},
		"Default":    {"", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.lines = "  sync_interval: off\n" + c.lines
				b.Control(client.Controls{Approve: 1})
				for i := range 20 {
					b.Set("app", fmt.Sprint(i), spec(1))
				}
				r := b.start(t)
				after(time.Second)
				b.far.change(func() { b.far.removes = 2 })
				for i := range 20 {
					b.Set("app", fmt.Sprint(i), spec(2))
				}
				after(time.Second)
				require.Equal(t, 20-c.pass, r.target().Held)
				after(2 * time.Minute)
				require.Equal(t, 20-c.pass, r.target().Held, "time releases none")
				b.Set("app", "0", spec(3))
				after(time.Second)
				b.Control(client.Controls{Approve: 2})
				after(time.Second)
				require.Zero(t, r.target().Held)
			})
		})
	}
}

// asking is a far side whose driver asks for other objects during each call.
type asking struct {
	*farSide

	keys []string
	told map[string]string
}

func (a *asking) Apply(ctx context.Context, o driver.Object) driver.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, key := range a.keys {
		spec, err := o.Owner.Wanted(ctx, "app", key)
		a.told[key] = fmt.Sprintf("%s %v", spec, err)
	}
	return driver.Done()
}

// F165: what an agent has of another object tells a driver whether its row wants it, unless the far side must keep it.
func TestF165_AnAgentKnowsOtherRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		far := &asking{farSide: b.far, told: map[string]string{}}
		b.drv = far
		b.Set("app", "1", spec(1))
		b.Set("app", "2", spec(1))
		b.Keep("app", "3", "blocked")
		b.start(t)
		after(time.Second)
		b.Delete("app", "2")
		after(time.Second)
		far.change(func() { far.keys = []string{"1", "2", "3", "4"} })
		b.Set("app", "5", spec(1))
		after(time.Second)
		far.change(func() {
			require.Equal(t, map[string]string{
				"1": `{"n":1} <nil>`, "2": " <nil>", "3": " whether its row wants it is not known at the moment", "4": " <nil>",
			}, far.told)
		})
	})
}
