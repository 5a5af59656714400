package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// refuses is SQL that makes writes to a table fail, and works what ends that.
func refuses(when, table string) string {
	return `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
		CREATE TRIGGER refuse BEFORE ` + when + ` ON reconciler.` + table + ` FOR EACH ROW EXECUTE FUNCTION public.refuse()`
}

const works = `DROP FUNCTION public.refuse CASCADE`

// away is SQL that takes a function away, and back what brings it back.
func away(function string) string {
	return `ALTER FUNCTION reconciler.` + function + ` RENAME TO away`
}

func back(function string) string { return `ALTER FUNCTION reconciler.away RENAME TO ` + function }

// failing is a loop, what makes it fail (SQL, or statements that are refused), SQL that has it take a turn, and SQL that mends it.
type failing struct {
	loop, broken, provoke, mended string
	refused                       []string
}

const (
	change  = `UPDATE apps SET image = image || 'x'`
	deposed = `UPDATE reconciler.leases SET owner = NULL; ` + servertest.Control
	unowned = `UPDATE reconciler.targets SET owner = NULL; ` + servertest.Control
)

// A loop that fails again and again shows in status, doctor, /readyz, a metric and the log until it works.
func TestF15_EveryLoopThatFailsIsSeen(t *testing.T) {
	t.Parallel()
	seeEach(t, []failing{
		{loop: "definitions", broken: away("key_text"), provoke: servertest.Control, mended: back("key_text")},
		{loop: "turns", broken: away("turns"), provoke: `SELECT pg_notify('reconciler_turn', '')`, mended: back("turns")},
		{loop: "turn", broken: away("claim_operations"), provoke: `SELECT reconciler.begin_apply('turned'); ` + change, mended: back("claim_operations")},
		{loop: "settle", broken: refuses("INSERT OR UPDATE", "ledger"), provoke: change, mended: works},
		{loop: "sync", broken: refuses("UPDATE", "sync_runs"), provoke: `SELECT reconciler.resync('eu')`, mended: works},
	})
}

func TestF15_HeartbeatThatFailsIsSeen(t *testing.T) {
	t.Parallel()
	seeEach(t, []failing{{loop: "heartbeat", broken: refuses("INSERT", "heartbeats"), mended: works}})
}

func TestF15_EveryLoopOfTheLeaderThatFailsIsSeen(t *testing.T) {
	t.Parallel()
	seeEach(t, []failing{
		{loop: "tick", broken: refuses("INSERT", "ticks"), provoke: change, mended: works},
		{loop: "expand", broken: away("fence_leader"), provoke: `UPDATE owners SET name = name || 'x'`, mended: back("fence_leader")},
		// One that cannot be opened fails by itself, unless even that cannot be written down.
		{
			loop: "open", broken: away("open_applies") + `; ALTER FUNCTION reconciler.fail_apply RENAME TO away_too`,
			provoke: `SELECT reconciler.begin_apply('opened')`, mended: `ALTER FUNCTION reconciler.away_too RENAME TO fail_apply; ` + back("open_applies"),
		},
		{loop: "retain", broken: away("retain"), mended: back("retain")},
		{loop: "forget", broken: away("forget_applies"), mended: back("forget_applies")},
	})
}

func TestF15_EveryLoopWhoseStatementFailsIsSeen(t *testing.T) {
	t.Parallel()
	seeEach(t, []failing{
		{loop: "listen", refused: []string{"LISTEN "}, provoke: `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler % listen'`},
		{loop: "acquire", refused: []string{"-- name: TargetsAcquire "}, provoke: unowned},
		{loop: "configure", refused: []string{"-- name: TargetsConfigure "}, provoke: `UPDATE reconciler.targets SET configured = false; ` + servertest.Control},
		{loop: "count", refused: []string{"-- name: AppliesUnderWay "}, provoke: deposed},
		{loop: "mend", refused: []string{"reconciler.capture_problems()"}, provoke: deposed},
	})
}

func TestF15_EveryLoopOfAnOwnerWhoseStatementFailsIsSeen(t *testing.T) {
	t.Parallel()
	seeEach(t, []failing{
		{loop: "steer", refused: []string{"-- name: TargetSteering "}, provoke: servertest.Control},
		{loop: "read", refused: []string{"-- name: TargetCursorStart "}, provoke: `DELETE FROM reconciler.cursors WHERE consumer > 0; ` + unowned},
		{loop: "due", refused: []string{"-- name: LedgerDue "}, provoke: `UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = now(); ` + servertest.Control},
		// A table that cannot be read keeps its own objects waiting, unless even that cannot be written down.
		{loop: "dispatch", refused: []string{`"reconciler"."desired_app"`, "-- name: LedgerInHand "}, provoke: change},
		{loop: "health", refused: []string{"-- name: TargetHealthWanted "}, provoke: unowned},
	})
}

// seeEach has one loop after another fail, and waits until that is seen, and no longer seen.
func seeEach(t *testing.T, loops []failing) {
	t.Helper()
	w, _ := servertest.Fleet(t, 1)
	w.DB.Exec(t, `CREATE TABLE owners (id int PRIMARY KEY, name text); INSERT INTO owners VALUES (1, 'ann');
		CREATE VIEW owned AS SELECT a.id, a.region, o.name FROM apps a JOIN owners o ON o.id = a.id;
		SELECT reconciler.track('owned', 'owned', '{id}', 'region', spec => 'to_jsonb(name)', depends_on => '{"apps": {"id": "id"}, "owners": {"id": "id"}}')`)
	line := pgtest.NewLine(t, w.DB.URL)
	w.StartWith(func(c *config.Config) {
		c.Listen, c.DatabaseURL, c.DirectURL = "127.0.0.1:0", config.NewURL(line.URL), config.NewURL(line.URL)
	}, servertest.Named("eu", &patient{Place: servertest.NewPlace(), says: healthy}, servertest.Quick))
	w.Eventually("it is ready", func() bool { return w.Ready() == "200 ok" })
	w.Wait()
	for _, c := range loops {
		seenWell(w)
		line.Fail(c.refused...)
		for _, sql := range []string{c.broken, c.provoke} {
			if sql != "" {
				w.DB.Exec(t, "BEGIN; "+sql+"; COMMIT")
			}
		}
		seenFailing(w, c.loop)
		line.Fail()
		w.DB.Exec(t, c.mended+"; "+servertest.Control)
	}
	seenWell(w)
	w.Converged()
}

// seenFailing waits until a loop that fails is told of everywhere.
func seenFailing(w *servertest.World, loop string) {
	w.T.Helper()
	w.Eventually("the metric says so", func() bool { return w.Series("loop_failing", loop) == 1 && w.Series("loop_failures_total", loop) >= 1 })
	w.Eventually("the probe says so", func() bool {
		return strings.HasPrefix(w.Ready(), "503 ") && strings.Contains(w.Ready(), "loop "+loop+" ")
	})
	finding, shown := loop+" of %", `state IN ('error', 'unowned') AND last_error LIKE '%has been failing since%'`
	if loop == "heartbeat" { // without it the process cannot write down what fails
		finding, shown = "process % has not been heard of since %", `state = 'unowned'`
	}
	w.Eventually("doctor says so", func() bool {
		return w.Text(`SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND finding LIKE $1 AND remedy <> ''`, finding) == "1"
	})
	w.Settled("true", `SELECT (`+shown+`)::text FROM reconciler.status WHERE target = 'eu'`)
	line, ok := map[string]string{"heartbeat": "msg=heartbeat_failed", "listen": "msg=listen_lost"}[loop]
	if !ok {
		line = "msg=loop_failing loop=" + loop + " "
	}
	require.NotEmpty(w.T, w.Logged(line))
}

// seenWell waits until no loop is told of any more.
func seenWell(w *servertest.World) {
	w.T.Helper()
	w.Eventually("all is well", func() bool {
		w.DB.Exec(w.T, servertest.Control) // the process looks now, and not with its next heartbeat
		return w.Ready() == "200 ok" && w.Series("loop_failing") == 0 && w.Text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "0"
	})
	require.Equal(w.T, "t", w.Text(`SELECT bool_and(ok)::text::char FROM reconciler.doctor_loops()`))
}

// A right that is taken away while the daemon runs is told of by the loop that needs it.
func TestF15_RevokedRightIsSeen(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	role := w.DB.Role(t, "daemon", "")
	w.DB.Exec(t, `SELECT reconciler.grant($1, 'runtime')`, role)
	w.StartWith(func(c *config.Config) {
		c.Listen, c.DatabaseURL, c.DirectURL = "127.0.0.1:0", config.NewURL(w.DB.URLFor(role)), config.NewURL(w.DB.URLFor(role))
	}, servertest.Named("eu", servertest.NewPlace(), servertest.Quick))
	w.Eventually("it is ready", func() bool { return w.Ready() == "200 ok" })
	w.Wait()
	w.DB.Exec(t, `REVOKE UPDATE ON reconciler.ledger FROM `+role)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	seenFailing(w, "settle")
	require.Contains(t, w.Text(`SELECT last_error FROM reconciler.status WHERE target = 'eu'`), "permission denied for table ledger")
	w.DB.Exec(t, `SELECT reconciler.grant($1, 'runtime')`, role)
	seenWell(w)
	w.Converged()
}

// A pooler that is paused answers nothing at all: whoever works through it waits, and all the same it is told.
func TestF93_PausedPoolerIsSeen(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	pooler := w.DB.Pooler(t, pgtest.PoolerAdmin)
	eu := servertest.NewPlace()
	w.StartWith(func(c *config.Config) {
		c.Listen, c.DatabaseURL = "127.0.0.1:0", config.NewURL(pooler.URL)
	}, servertest.Named("eu", eu, servertest.Quick))
	w.Eventually("it is ready", func() bool { return w.Ready() == "200 ok" })
	w.Wait()
	pooler.Pause(t)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.Eventually("the probe says so", func() bool { return strings.Contains(w.Ready(), "loop pool_work has been failing for") })
	w.Eventually("doctor says so", func() bool {
		return w.Text(`SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND remedy <> ''`) != "0"
	})
	w.Eventually("the status says so", func() bool {
		return w.Text(`SELECT (state IN ('error', 'unowned'))::text FROM reconciler.status WHERE target = 'eu'`) == "true"
	})
	require.EqualValues(t, 1, w.Series("loop_failing", "pool_work"))
	require.NotEmpty(t, w.Logged("msg=loop_failing loop=pool_work "))
	pooler.Resume(t)
	w.Converged()
	w.Eventually("all is well", func() bool {
		return w.Ready() == "200 ok" && w.Text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "0"
	})
}

// Nothing that a pooler keeps waiting keeps a process from ending: with it ends what it asked, and what it waits for to connect.
func TestF93_ProcessEndsWhileThePoolerIsPaused(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	pooler := w.DB.Pooler(t, pgtest.PoolerAdmin)
	eu := servertest.NewPlace()
	p := w.StartWith(func(c *config.Config) {
		c.ShutdownTimeout, c.DatabaseURL = 100*time.Millisecond, config.NewURL(pooler.URL)
	}, servertest.Named("eu", eu, servertest.Quick))
	w.Wait()
	pooler.Pause(t)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.Eventually("it waits for the pooler", func() bool { return len(w.Logged("msg=loop_failing loop=pool_work ")) > 0 })
	p.Cancel()
	require.ErrorContains(t, <-p.Done, "draining took longer than shutdown_timeout")
	require.Len(t, w.Logged("msg=connections_given_up "), 1)
}
