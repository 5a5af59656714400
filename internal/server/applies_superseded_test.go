package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// F184: a release that failed in one target and was put back there by an ordinary change reaches no other target, whatever printed
// command is run after that.
func TestF184_ReleaseThatWasPutBackReachesNoOtherTarget(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	asia.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if strings.Contains(c.Spec, "bad") {
			return driver.Terminal(errors.New("no such image"))
		}
		return driver.Done()
	})
	apply(w, `'release 2'`, `UPDATE apps SET image = 'bad'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v1' WHERE region = 'asia'`)
	w.Settled("superseded halted halted", `SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`)
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.WaitFor("asia")
	require.Equal(t, "superseded halted halted", w.Text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "1", w.Text(`SELECT count(*)::text FROM reconciler.apply_events`), "it has ended once")
	for _, place := range []*servertest.Place{eu, us} {
		_, calls, _ := place.Snapshot()
		require.Len(t, calls, 1, "it keeps what it has")
	}

	apply(w, `'back'`, `UPDATE apps SET image = 'v1' WHERE region <> 'asia'`)
	w.Settled("superseded completed", `SELECT string_agg(state, ' ' ORDER BY id) FROM reconciler.applies`)
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.tasks WHERE governs`))
	w.Converged()
}
