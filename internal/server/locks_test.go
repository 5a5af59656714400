package server_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// F22: the numbers of advisory locks are no secret, and any role may take them.
func TestF22_LockThatAStrangerHoldsStopsNobody(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]string{
		"Exclusive": `pg_advisory_lock(n)`, "Shared": `pg_advisory_lock_shared(n)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 1)
			stranger := w.DB.ConnAs(t, w.DB.Role(t, "stranger", ""))
			_, err := stranger.Exec(t.Context(), `SELECT `+take+` FROM generate_series(7165064744911531379, 7165064744911531383) AS n`)
			require.NoError(t, err)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.DB.Exec(t, `SELECT reconciler.track('other', 'apps', '{id}', 'region', spec => 'to_jsonb(region)')`)
			want["other/1"] = `"eu"`
			apply(w, `'release'`, `UPDATE apps SET image = 'v2'`)
			want["app/1"] = `"v2"`
			eu.Eventually(t, want)
			w.Settled("completed", `SELECT state FROM reconciler.applies`)
			require.Equal(t, fmt.Sprintf("f | End it, or: SELECT pg_terminate_backend(%d);", stranger.PgConn().PID()),
				w.Text(`SELECT string_agg(DISTINCT concat_ws(' | ', ok, remedy), '; ') FROM reconciler.doctor() WHERE check_name = 'locks'`))
			require.NoError(t, stranger.Close(t.Context()))
		})
	}
}

// F22: an open transaction that defines a resource keeps others from that, by name, and rollouts from nothing.
func TestF22_OpenDefinitionKeepsNoRolloutWaiting(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]string{
		"Track":      `SELECT reconciler.track('other', 'others', '{id}', 'region')`,
		"SetApplies": `SELECT reconciler.set_applies('idle', true)`,
		"SetNotify":  `SELECT reconciler.set_notify(false)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.HoldingFleet(t, 1)
			w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text); CREATE TABLE idle (id int PRIMARY KEY, region text)`)
			w.DB.Exec(t, `SELECT reconciler.track('idle', 'idle', '{id}', 'region')`)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.Wait()
			person := w.Begin()
			w.In(person, open)
			apply(w, `'release'`, `UPDATE apps SET image = 'v2'`)
			eu.Eventually(t, map[string]string{"app/1": `"v2"`})
			w.Settled("completed", `SELECT state FROM reconciler.applies`)

			other := w.DB.Conn(t)
			_, err := other.Exec(t.Context(), `SET lock_timeout = '100ms'`)
			require.NoError(t, err)
			_, err = other.Exec(t.Context(), `SELECT reconciler.track('app', 'apps', '{id}', 'region')`)
			require.ErrorContains(t, err, fmt.Sprintf("resources are being defined in another transaction: pid %d (", person.Conn().PgConn().PID()))
			require.NoError(t, person.Rollback(t.Context()))
		})
	}
}

// F24: who leaves set_notify() open keeps no leader from its work, and no other from taking it over.
func TestF24_OpenSetNotifyStopsNobody(t *testing.T) {
	t.Parallel()
	w, want := servertest.HoldingFleet(t, 1)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	person := w.Begin()
	w.In(person, `SELECT reconciler.set_notify(false)`)
	p.Stop(t)
	w.Start(servertest.Named("eu", eu))
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	eu.Eventually(t, map[string]string{"app/1": `"v2"`})
	// Housekeeping goes on, too: what everybody has read is emptied.
	w.DB.Exec(t, `SET lock_timeout = '5s'; UPDATE reconciler.installation SET rotated_at = '2000-01-01'; RESET lock_timeout`)
	w.Eventually("the outbox is emptied", func() bool {
		w.DB.Exec(t, `SET lock_timeout = '5s'; SELECT reconciler.retain('1 day', 1000, '1 hour'); RESET lock_timeout`)
		return w.Text(`SELECT count(*)::text FROM reconciler.outbox`) == "0"
	})
	require.Zero(t, w.Series("loop_failing"))
	require.NoError(t, person.Rollback(t.Context()))
}

// F19: an absurd interval is refused, wherever it comes from.
func TestF19_AbsurdSoakIsRefused(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	for _, sql := range []string{
		`SELECT reconciler.begin_apply('release', soak => '293000 years')`,
		`SELECT reconciler.begin_apply('release', soak => '1 year 1 day')`,
		`SELECT reconciler.set_applies('app', true, soak => '293000 years')`,
		`SELECT reconciler.begin_resync('app', soak => '293000 years')`,
	} {
		_, err := w.DB.Pool.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "soak must be an interval from zero to a year, not", sql)
	}
	w.DB.Exec(t, `SELECT reconciler.begin_apply('release', soak => '1 year')`)
	_, err := w.DB.Pool.Exec(t.Context(), `UPDATE reconciler.applies SET soak = '293000 years'`)
	require.ErrorContains(t, err, "applies_soak_check")
	for _, sql := range []string{
		`SELECT reconciler.begin_apply('release', labels => jsonb_build_object('a', repeat('x', 100000)))`,
		`SELECT reconciler.begin_apply('release', waves => jsonb_build_array(jsonb_build_array(repeat('x', 2000000))))`,
	} {
		_, err := w.DB.Pool.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "must have at most", sql)
	}
}

// F21: a table that somebody has locked keeps the changes of other tables waiting no longer than it takes to see that.
func TestF21_LockedTableKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	w, _ := servertest.HoldingFleet(t, 20)
	w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL, n int); INSERT INTO others VALUES (1, 'eu', 0)`)
	w.DB.Exec(t, `SELECT reconciler.track('other', 'others', '{id}', 'region', spec => 'to_jsonb(n)')`)
	eu := servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu))
	w.Eventually("the first sync is complete", func() bool { return eu.Size() == 21 })
	w.Wait()
	p.Stop(t)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	person := w.Begin()
	w.In(person, `LOCK TABLE apps IN ACCESS EXCLUSIVE MODE`)
	w.Start(servertest.Named("eu", eu))
	n := 0
	w.Eventually("a change arrives without another try at the locked table", func() bool {
		const tries = `SELECT coalesce(max(next_attempt_at)::text, '') FROM reconciler.objects WHERE resource = 'app' AND state = 'pending'`
		n++
		before := w.Text(tries)
		w.DB.Exec(t, `UPDATE others SET n = $1`, n)
		eu.Until(t, func(have map[string]string, _ []servertest.Call) bool { return have["other/1"] == fmt.Sprint(n) }, func() string { return "a change of the other table" })
		return before != "" && w.Text(tries) == before
	})
	require.NotEmpty(t, w.Logged("rows_unreadable"), "it is said")
	require.NoError(t, person.Rollback(t.Context()))
	w.Eventually("what was locked is applied", func() bool {
		have, _, _ := eu.Snapshot()
		return have["app/20"] == `"v2"`
	})
}
