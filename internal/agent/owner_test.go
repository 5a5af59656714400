package agent

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
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
