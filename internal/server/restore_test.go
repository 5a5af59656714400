package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// A dump that is loaded under a running agent: the agent goes on by itself, applies what the rows ask for, and holds what the restore
// has lost. That is in wait(), status and held until a person approves it.
func TestF150_AgentsOutliveARestore(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 20)
	target, listen := acked(t, "eu"), func(at string) func(*config.Config) {
		return func(c *config.Config) { c.Streams.Listen = at }
	}
	p := w.StartWith(listen("127.0.0.1:0"), target)
	address, far := address(w, "streams.listen"), servertest.NewPlace()
	stopAgent := startAgent(w, address, "eu", servertest.Listing{Place: far})
	w.Wait()
	restored := w.Wanted("eu")
	require.Equal(t, restored, far.Have())
	dump := w.DB.Dump(t)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id < 5; DELETE FROM apps WHERE id = 5;
		INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(101, 119) AS i`)
	w.Wait()
	require.Equal(t, w.Wanted("eu"), far.Have())
	lost := far.Have()
	p.Stop(t)

	w.DB.Restore(t, dump, "--clean", "--if-exists")
	w.StartWith(listen(address), acked(t, "eu"))
	for id := range restored {
		lost[id] = restored[id]
	}
	far.Eventually(t, lost)
	const held = `the guard of agent host-eu holds 19 deletes; SELECT reconciler.approve('eu');`
	w.Settled("held "+held, `SELECT state || ' ' || guard FROM reconciler.status`)
	require.Equal(t, "agent "+held, w.Text(`SELECT held_by || ' ' || reason FROM reconciler.held`))
	w.Settled("held "+held, `SELECT string_agg(concat_ws(' ', key, state, reason), ', ') FROM reconciler.wait('1 min')`)

	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	far.Eventually(t, restored)
	w.Settled("ok", `SELECT state FROM reconciler.status`)
	w.Wait()
	stopAgent()
}

// Reports of before a restore confirm nothing: nobody knows what the far side has while its agent is away.
func TestF150_ReportsOfBeforeARestoreConfirmNothing(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	target := acked(t, "eu")
	target.Timeout = time.Second // for which the next owner waits: a call may still be under way
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, target)
	address, far, dir := address(w, "streams.listen"), servertest.NewPlace(), t.TempDir()
	stopAgent := startAgentIn(w, dir, address, "eu", far)
	w.Wait()
	stopAgent()
	w.DB.Exec(t, `SELECT reconciler.start_over('restored')`)
	w.Settled("3 pending: the client has not reported version", `SELECT concat_ws(' ', count(*), min(state::text) || ':', min(regexp_replace(last_error, ' \d+$', '')))
		FROM reconciler.objects WHERE last_error LIKE 'the client has not reported version%'`)
	require.Equal(t, "3 pending", w.Text(`SELECT concat_ws(' ', count(*), min(state)) FROM reconciler.wait('1 s') WHERE key IS NOT NULL`))
	startAgentIn(w, dir, address, "eu", far)
	w.Wait()
}
