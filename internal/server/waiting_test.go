package server_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// unconfirmed makes the calls for one key wait for the target.
func unconfirmed(key string) func(context.Context, servertest.Call) driver.Outcome {
	return func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Key == key {
			return driver.Waiting(time.Hour, "the target has not confirmed it")
		}
		return driver.Done()
	}
}

// A rollout goes on with the next target when the one before has confirmed. Until then nothing fails, and other objects of the
// target go on.
func TestRolloutWaitsForConfirmation(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	eu.Set(unconfirmed("2"))

	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("pending attempts=0 next=3600 error=the target has not confirmed it applied", `SELECT regexp_replace(x, 'next=\d+', 'next=3600') FROM (`+
		`SELECT concat_ws(' ', state, 'attempts=' || attempts, 'next=' || round(extract(epoch FROM next_attempt_at - clock_timestamp())), 'error=' || last_error,
			CASE WHEN applied_at IS NOT NULL THEN 'applied' END) AS x FROM reconciler.objects WHERE target = 'eu') AS o`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'eu', 'v1')`)
	eu.Eventually(t, map[string]string{"app/2": `["v1", null]`, "app/4": `["v1", null]`})
	require.Equal(t, "running", w.Text(`SELECT state FROM reconciler.applies`))
	require.Equal(t, "0", w.Text(`SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`))
	require.Contains(t, w.Text(`SELECT string_agg(e, ' ') FROM reconciler.explain('eu', 'app', '2') AS e`), "Ledger: pending: the target has not confirmed it; looked at again at ")
	us.Eventually(t, map[string]string{"app/3": `["v1", null]`})
	require.Empty(t, w.Logged("call_failed"))

	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('eu', 'app', '2')`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	us.Eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.Converged()
}

// An object leaves the ledger when its delete is confirmed, whichever process looks then.
func TestDeleteWaitsForConfirmation(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu))
	w.Settled("2", `SELECT count(*)::text FROM reconciler.objects WHERE state = 'applied'`)
	eu.Set(unconfirmed("2"))
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 2`)
	const row = `SELECT concat_ws(' ', state, wanted, present, attempts) FROM reconciler.objects WHERE key = '2'`
	w.Settled("pending f t 0", row)
	w.Settled("true", `SELECT (string_agg(e, ' ') LIKE '%Ledger: pending: its delete: the target has not confirmed it;%')::text FROM reconciler.explain('eu', 'app', '2') AS e`)
	p.Stop(t)
	w.Start(servertest.Named("eu", eu))
	w.Settled("pending f t 0", row)
	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.objects WHERE key = '2'`)
	w.Converged()
}
