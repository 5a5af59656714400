package server_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// refuses is SQL that makes writes to a table fail, and works what ends that.
func refuses(when, table string) string {
	return `CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
		CREATE TRIGGER refuse BEFORE ` + when + ` ON reconciler.` + table + ` FOR EACH ROW EXECUTE FUNCTION public.refuse()`
}

const works = `DROP FUNCTION public.refuse CASCADE`

// control is SQL that has processes look at once what has changed.
const control = `SELECT pg_notify('reconciler_control', '')`

// away is SQL that takes a function away, and back what brings it back.
func away(function string) string {
	return `ALTER FUNCTION reconciler.` + function + ` RENAME TO away`
}

func back(function string) string { return `ALTER FUNCTION reconciler.away RENAME TO ` + function }

// A loop that fails again and again shows in status, doctor, /readyz, a metric and the log until it works.
func TestF15_EveryLoopThatFailsIsSeen(t *testing.T) {
	t.Parallel()
	const change = `UPDATE apps SET image = image || 'x'`
	for part := range slices.Chunk([]struct{ loop, broken, provoke, mended string }{
		{"tick", refuses("INSERT", "ticks"), change, works},
		{"expand", away("fence_leader"), `UPDATE owners SET name = name || 'x'`, back("fence_leader")},
		// One that cannot be opened fails by itself, unless even that cannot be written down.
		{
			"open", away("open_applies") + `; ALTER FUNCTION reconciler.fail_apply RENAME TO away_too`, `SELECT reconciler.begin_apply('opened')`,
			`ALTER FUNCTION reconciler.away_too RENAME TO fail_apply; ` + back("open_applies"),
		},
		{"retain", away("retain"), "", back("retain")},
		{"forget", away("forget_applies"), "", back("forget_applies")},
		{"definitions", away("key_text"), control, back("key_text")},
		{"turns", away("turns"), `SELECT pg_notify('reconciler_turn', '')`, back("turns")},
		{"turn", away("claim_operations"), `SELECT reconciler.begin_apply('turned'); UPDATE apps SET image = image || 'x'`, back("claim_operations")},
		{"settle", refuses("INSERT OR UPDATE", "ledger"), change, works},
		{"sync", refuses("UPDATE", "sync_runs"), `SELECT reconciler.resync('eu')`, works},
		{"heartbeat", refuses("INSERT", "heartbeats"), "", works},
	}, 3) {
		t.Run(part[0].loop, func(t *testing.T) {
			t.Parallel()
			w, _ := fleet(t, 1)
			w.db.Exec(t, `CREATE TABLE owners (id int PRIMARY KEY, name text); INSERT INTO owners VALUES (1, 'ann');
				CREATE VIEW owned AS SELECT a.id, a.region, o.name FROM apps a JOIN owners o ON o.id = a.id;
				SELECT reconciler.track('owned', 'owned', '{id}', 'region', spec => 'to_jsonb(name)', depends_on => '{"apps": {"id": "id"}, "owners": {"id": "id"}}')`)
			w.startWith(func(c *config.Config) { c.Listen = "127.0.0.1:0" }, named("eu", newPlace(), quick))
			w.eventually("it is ready", func() bool { return w.ready() == "200 ok" })
			w.wait()
			for _, c := range part {
				w.seenWell()
				w.db.Exec(t, c.broken)
				if c.provoke != "" {
					w.db.Exec(t, "BEGIN; "+c.provoke+"; COMMIT")
				}
				w.seenFailing(c.loop)
				w.db.Exec(t, c.mended)
				w.db.Exec(t, control)
			}
			w.seenWell()
			w.converged()
		})
	}
}

// seenFailing waits until a loop that fails is told of everywhere.
func (w *world) seenFailing(loop string) {
	w.t.Helper()
	w.eventually("the metric says so", func() bool { return w.series("loop_failing", loop) == 1 && w.series("loop_failures_total", loop) >= 1 })
	w.eventually("the probe says so", func() bool {
		return strings.HasPrefix(w.ready(), "503 ") && strings.Contains(w.ready(), "loop "+loop+" ")
	})
	finding, shown := loop+" of %", `state IN ('error', 'unowned') AND last_error LIKE '%has been failing since%'`
	if loop == "heartbeat" { // without it the process cannot write down what fails
		finding, shown = "process % has not been heard of since %", `state = 'unowned'`
	}
	w.eventually("doctor says so", func() bool {
		return w.text(`SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND finding LIKE $1 AND remedy <> ''`, finding) == "1"
	})
	w.settled("true", `SELECT (`+shown+`)::text FROM reconciler.status WHERE target = 'eu'`)
	line, ok := map[string]string{"heartbeat": "msg=heartbeat_failed", "listen": "msg=listen_lost"}[loop]
	if !ok {
		line = "msg=loop_failing loop=" + loop + " "
	}
	require.NotEmpty(w.t, w.logged(line))
}

// seenWell waits until no loop is told of any more.
func (w *world) seenWell() {
	w.t.Helper()
	w.eventually("all is well", func() bool {
		w.db.Exec(w.t, control) // the process looks now, and not with its next heartbeat
		return w.ready() == "200 ok" && w.series("loop_failing") == 0 && w.text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "0"
	})
	require.Equal(w.t, "t", w.text(`SELECT bool_and(ok)::text::char FROM reconciler.doctor_loops()`))
}

// The same for loops one of whose statements fails.
func TestF15_EveryLoopWhoseStatementFailsIsSeen(t *testing.T) {
	t.Parallel()
	const deposed = `UPDATE reconciler.leases SET owner = NULL; ` + control
	for part := range slices.Chunk([]struct {
		loop    string
		provoke string
		refused []string
	}{
		{"listen", `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler % listen'`, []string{"LISTEN "}},
		{"acquire", `UPDATE reconciler.targets SET owner = NULL; ` + control, []string{"-- name: TargetsAcquire "}},
		{"configure", `UPDATE reconciler.targets SET configured = false; ` + control, []string{"-- name: TargetsConfigure "}},
		{"count", deposed, []string{"-- name: AppliesUnderWay "}},
		{"mend", deposed, []string{"reconciler.capture_problems()"}},
		{"steer", control, []string{"-- name: TargetSteering "}},
		{"read", `DELETE FROM reconciler.cursors WHERE consumer > 0; UPDATE reconciler.targets SET owner = NULL; ` + control, []string{"-- name: TargetCursorStart "}},
		{"due", `UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = now(); ` + control, []string{"-- name: LedgerDue "}},
		// A table that cannot be read keeps its own objects waiting, unless even that cannot be written down.
		{"dispatch", `UPDATE apps SET image = 'v2'`, []string{`"reconciler"."desired_app"`, "-- name: LedgerInHand "}},
		{"health", `UPDATE reconciler.targets SET owner = NULL; ` + control, []string{"-- name: TargetHealthWanted "}},
	}, 3) {
		t.Run(part[0].loop, func(t *testing.T) {
			t.Parallel()
			w, _ := fleet(t, 1)
			eu := &patient{place: newPlace(), says: healthy}
			line := pgtest.NewLine(t, w.db.URL)
			w.startWith(func(c *config.Config) {
				c.Listen, c.DatabaseURL, c.DirectURL = "127.0.0.1:0", config.NewURL(line.URL), config.NewURL(line.URL)
			}, named("eu", eu, quick))
			w.eventually("it is ready", func() bool { return w.ready() == "200 ok" })
			w.wait()
			for _, c := range part {
				w.seenWell()
				line.Fail(c.refused...)
				w.db.Exec(t, c.provoke)
				w.seenFailing(c.loop)
				line.Fail()
				w.db.Exec(t, control)
			}
			w.seenWell()
			w.converged()
		})
	}
}

// A right that is taken away while the daemon runs is told of by the loop that needs it.
func TestF15_RevokedRightIsSeen(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	role := w.db.Role(t, "daemon", "")
	w.db.Exec(t, `SELECT reconciler.grant($1, 'runtime')`, role)
	w.startWith(func(c *config.Config) {
		c.Listen, c.DatabaseURL, c.DirectURL = "127.0.0.1:0", config.NewURL(w.db.URLFor(role)), config.NewURL(w.db.URLFor(role))
	}, named("eu", newPlace(), quick))
	w.eventually("it is ready", func() bool { return w.ready() == "200 ok" })
	w.wait()
	w.db.Exec(t, `REVOKE UPDATE ON reconciler.ledger FROM `+role)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.seenFailing("settle")
	require.Contains(t, w.text(`SELECT last_error FROM reconciler.status WHERE target = 'eu'`), "permission denied for table ledger")
	w.db.Exec(t, `SELECT reconciler.grant($1, 'runtime')`, role)
	w.seenWell()
	w.converged()
}

// A pooler that is paused answers nothing at all: whoever works through it waits, and all the same it is told.
func TestF93_PausedPoolerIsSeen(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	pooler := w.db.Pooler(t, pgtest.PoolerAdmin)
	eu := newPlace()
	w.startWith(func(c *config.Config) {
		c.Listen, c.DatabaseURL = "127.0.0.1:0", config.NewURL(pooler.URL)
	}, named("eu", eu, quick))
	w.eventually("it is ready", func() bool { return w.ready() == "200 ok" })
	w.wait()
	pooler.Pause(t)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.eventually("the probe says so", func() bool { return strings.Contains(w.ready(), "loop pool_work has been failing for") })
	w.eventually("doctor says so", func() bool {
		return w.text(`SELECT count(*)::text FROM reconciler.doctor_loops() WHERE NOT ok AND remedy <> ''`) != "0"
	})
	w.eventually("the status says so", func() bool {
		return w.text(`SELECT (state IN ('error', 'unowned'))::text FROM reconciler.status WHERE target = 'eu'`) == "true"
	})
	require.EqualValues(t, 1, w.series("loop_failing", "pool_work"))
	require.NotEmpty(t, w.logged("msg=loop_failing loop=pool_work "))
	pooler.Resume(t)
	w.converged()
	w.eventually("all is well", func() bool {
		return w.ready() == "200 ok" && w.text(`SELECT count(*)::text FROM reconciler.failing_loops`) == "0"
	})
}

// Nothing that a pooler keeps waiting keeps a process from ending: with it ends what it asked, and what it waits for to connect.
func TestF93_ProcessEndsWhileThePoolerIsPaused(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 1)
	pooler := w.db.Pooler(t, pgtest.PoolerAdmin)
	eu := newPlace()
	p := w.startWith(func(c *config.Config) {
		c.ShutdownTimeout, c.DatabaseURL = 100*time.Millisecond, config.NewURL(pooler.URL)
	}, named("eu", eu, quick))
	w.wait()
	pooler.Pause(t)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.eventually("it waits for the pooler", func() bool { return len(w.logged("msg=loop_failing loop=pool_work ")) > 0 })
	p.cancel()
	require.ErrorContains(t, <-p.done, "draining took longer than shutdown_timeout")
	require.Len(t, w.logged("msg=connections_given_up "), 1)
}

var listening = regexp.MustCompile(`key=listen address=(\S+)`)

// ready asks the probe of the process that was started last.
func (w *world) ready() string {
	w.t.Helper()
	lines := w.logged("msg=listening")
	if len(lines) == 0 {
		return ""
	}
	resp, err := http.Get("http://" + listening.FindStringSubmatch(lines[len(lines)-1])[1] + "/readyz")
	require.NoError(w.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
}
