package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// statusColumnsOfView are those that scripts may rely on.
var statusColumnsOfView = []string{
	"target", "state", "driver", "owner", "objects", "applied", "pending", "failing", "blocked", "held", "lag", "lag_seconds", "oldest_pending",
	"last_sync", "sync", "paused", "guard", "circuit", "trouble", "last_error",
}

func TestStatusAsJSONIsOneObjectForEachTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(t, "status", "-o", "json")
	require.Zero(t, r.code)
	var targets []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &targets))
	require.Len(t, targets, 3)
	for i, name := range []string{"ap", "eu", "us"} {
		require.Equal(t, name, targets[i]["target"])
		for _, column := range statusColumnsOfView {
			require.Contains(t, targets[i], column)
		}
		require.Len(t, targets[i], len(statusColumnsOfView))
	}
	require.InDelta(t, 4, targets[1]["objects"], 0)
	require.Equal(t, "HTTP 503 Service Unavailable", targets[1]["last_error"])
	require.Nil(t, targets[1]["sync"])
}

func TestStatusOfNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "SELECT reconciler.untrack('deployments'); DELETE FROM reconciler.targets")
	require.Equal(t, result{stdout: "No target is known yet: `reconciler run` writes down those of its config when it starts.\n"}, w.run(t, "status"))
	require.Equal(t, result{stdout: "[]\n"}, w.run(t, "status", "-o", "json"))
	require.Equal(t, result{stdout: "no objects\n"}, w.run(t, "status", "--objects"))
	require.Equal(t, result{stdout: "nothing is pending\n"}, w.run(t, "status", "--pending"))
	require.Equal(t, result{stdout: "nothing is failing\n"}, w.run(t, "status", "--failing"))
	require.Equal(t, result{stdout: "nothing is held\n"}, w.run(t, "status", "--held"))
	require.Equal(t, result{stdout: "no drift was reported\n"}, w.run(t, "status", "--drift"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no target is named 'eu'\nhint: No target is known yet: `reconciler run` writes down those of its config when it starts.\n"},
		w.run(t, "status", "eu"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no resource is named 'deployments'\nhint: Nothing is tracked.\n"},
		w.run(t, "status", "--objects", "--resource", "deployments"))
}

func TestStatusListsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(t, "status", "--objects", "--resource", "deployments", "--limit", "8")
	require.Equal(t, "note: there are more than 8; --limit shows more\n", r.stderr)
	require.Len(t, strings.Split(strings.TrimSpace(r.stdout), "\n"), 9, "a heading and eight objects")
	r = w.run(t, "status", "eu", "--objects", "--limit", "4", "-o", "json")
	require.Empty(t, r.stderr)
	var objects []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &objects))
	require.Len(t, objects, 4)
	for _, column := range []string{"target", "resource", "key", "state", "wanted", "desired_revision", "applied_revision", "attempts", "last_error", "next_attempt_at", "applied_at"} {
		require.Contains(t, objects[0], column)
	}
}

func TestStatusShowsSyncsAndDownTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, `UPDATE reconciler.targets SET circuit_open_since = '2026-01-02 03:04:11+00', circuit_error = 'connection refused' WHERE name = 'eu';
		INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at, rows, upserts, tombstones)
		SELECT id, 'interval', 'running', '2026-01-02 03:04:12+00', 100, 2, 1 FROM reconciler.targets WHERE name = 'eu'`)
	require.Equal(t, `TARGET  STATE  OBJECTS  APPLIED  PENDING  FAILING  BLOCKED  HELD  LAG  LAST SYNC             OWNER
eu      down   4        2        0        1        1        0     0s   2026-01-02 03:04:05Z  host-1

eu: does not answer since 2026-01-02 03:04:11+00: connection refused
eu: interval sync since 2026-01-02 03:04:12+00: 100 rows read, 2 to apply, 1 to delete
`, w.run(t, "status", "eu").stdout)
}

// C37.
func TestWaitSaysWhatIsNotApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "UPDATE reconciler.leases SET lease_ttl = '0'; INSERT INTO public.deployments (id, region) VALUES (10, 'us')")
	r := w.run(t, "wait", "--timeout", "0")
	require.Equal(t, 4, r.code)
	require.Equal(t, "reconciler: not everything was applied within 0s\n", r.stderr)
	require.True(t, strings.HasPrefix(r.stdout, "all targets: unread: changes committed before the call have no revision yet. "), r.stdout)

	require.Equal(t, result{code: 2, stderr: "reconciler: no target is named 'mars'\nhint: Targets: ap, eu, us\n"}, w.run(t, "wait", "--target", "mars"))
	w.db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'us'")
	require.Equal(t, result{code: 2, stderr: "reconciler: no running process has target 'us' in its config, so nothing is applied there\nhint: Targets: ap, eu, us\n"},
		w.run(t, "wait", "--target", "us"))
}

func TestWaitReturnsAsSoonAsEverythingIsApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = clock_timestamp() WHERE key = '5'; UPDATE reconciler.targets SET paused_at = NULL")
	done := make(chan result, 1)
	go func() { done <- w.runContext(t.Context(), "wait", "--target", "us", "--timeout", "1m", "-o", "json") }()
	w.awaitSleeper(t)
	w.db.Exec(t, "UPDATE reconciler.ledger SET state = 'applied', next_attempt_at = NULL WHERE key = '5'")
	require.Equal(t, result{stdout: "{\n  \"applied\": true,\n  \"timed_out\": false,\n  \"waiting\": []\n}\n"}, <-done)
}

// C37.
func TestWaitHealthyAsksWhenEverythingIsApplied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "UPDATE reconciler.ledger SET state = 'applied', next_attempt_at = NULL WHERE key = '5'; UPDATE reconciler.targets SET paused_at = NULL")
	require.Equal(t, result{stdout: "everything is applied and healthy\n"}, w.run(t, "wait", "--target", "us", "--healthy"), "its driver reports no health")
	w.db.Exec(t, "DELETE FROM reconciler.health_asks; UPDATE reconciler.targets SET reports_health = true WHERE name = 'us'")
	done := make(chan result, 1)
	wait := func(args ...string) {
		done <- w.runContext(t.Context(), append([]string{"wait", "--target", "us", "--healthy"}, args...)...)
	}
	answer := func(unhealthy string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return w.value(t, "SELECT count(*)::text FROM reconciler.health_asks") == "1"
		}, patience, 5*time.Millisecond, "it does not ask")
		w.db.Exec(t, "DELETE FROM reconciler.health_asks; UPDATE reconciler.targets SET health_asked_at = clock_timestamp(), unhealthy = nullif('"+unhealthy+"', '') WHERE name = 'us'")
	}
	go wait("--timeout", "1m")
	answer("")
	require.Equal(t, result{stdout: "everything is applied and healthy\n"}, <-done)
	go wait("--timeout", "3s")
	answer("2 of 5 are ready")
	require.Equal(t, result{code: 4, stdout: "us: unhealthy: 2 of 5 are ready\n", stderr: "reconciler: not everything was healthy within 3s\n"}, <-done)
	go wait("--timeout", "0", "-o", "json")
	r := <-done
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stdout, `"applied": true`)
	require.Contains(t, r.stdout, `"state": "unasked"`)
	require.Contains(t, r.stdout, `"reason": "its health is being asked`)

	w.db.Exec(t, "UPDATE reconciler.ledger SET state = 'blocked', last_error = 'no' WHERE key = '5'")
	require.Equal(t, 1, w.run(t, "wait", "--target", "us", "--healthy").code)
	require.Equal(t, "1", w.value(t, "SELECT count(*)::text FROM reconciler.health_asks"), "what is not applied is not asked about")
}

// awaitSleeper returns when a session of a command sleeps in reconciler.wait().
func (w *world) awaitSleeper(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return w.value(t, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'") == "1"
	}, patience, 5*time.Millisecond, "nobody waits")
}

func TestCommandsEndWithASignal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan result, 1)
	go func() { done <- w.runContext(ctx, "wait", "--target", "eu", "--timeout", "1m") }()
	w.awaitSleeper(t)
	cancel(&signalError{syscall.SIGTERM})
	require.Equal(t, result{code: 143}, <-done)
}

func TestExplainTakesAnyKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(t, "explain", "eu", "deployments", "--", "-1")
	require.Zero(t, r.code)
	require.Equal(t, "Row: public.deployments has no row with key '-1'.", strings.SplitN(r.stdout, "\n", 2)[0])
	r = w.run(t, "explain", "eu", "nothing", "1")
	require.Equal(t, result{stdout: "Resource: nothing is tracked under the name 'nothing'. Resources: deployments\n"}, r)
}

func TestTopShowsTheStatusAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	screen := &screen{pages: make(chan string, 100)}
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &app{stdout: screen, stderr: screen, dir: w.dir, registry: registry()}
	code := make(chan int, 1)
	go func() { code <- a.execute(ctx, []string{"top", "--interval", "100ms"}) }()
	first := screen.next(t)
	require.True(t, strings.HasPrefix(first, "\x1b[HTARGET  STATE"), first)
	require.True(t, strings.HasSuffix(first, "\x1b[K\n\x1b[J"), first)

	// The database goes away and comes back: shown, and gone on with.
	w.db.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reconciler top' AND datname = current_database()")
	screen.until(t, "the connection to the database was lost")
	screen.until(t, "TARGET  STATE")
	cancel(&signalError{syscall.SIGINT})
	require.Zero(t, <-code, "Ctrl-C is the way to leave")
}

// screen is a terminal that hands over what is written, page by page.
type screen struct{ pages chan string }

func (s *screen) Write(p []byte) (int, error) {
	s.pages <- string(p)
	return len(p), nil
}

func (s *screen) next(t *testing.T) string {
	t.Helper()
	select {
	case page := <-s.pages:
		return page
	case <-time.After(patience):
		require.FailNow(t, "nothing is shown")
		return ""
	}
}

func (s *screen) until(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.next(t), text) {
		continue
	}
}

func TestTopAsJSONIsOneLineForEachLook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.run(t, "top", "--once", "-o", "json")
	require.Zero(t, r.code)
	require.Equal(t, 1, strings.Count(r.stdout, "\n"))
	var targets []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &targets))
	require.Len(t, targets, 3)
}

func TestDiffFindsWhatIsWrongInATarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, `UPDATE reconciler.ledger SET state = 'applied', wanted = true, held_by = NULL, next_attempt_at = NULL;
		INSERT INTO public.deployments (id, region) VALUES (11, 'eu'), (12, 'eu'); DELETE FROM public.deployments WHERE id = 2;
		UPDATE public.deployments SET image = 'app:2' WHERE id = 3`)
	eu := w.open(t, "eu")
	w.apply(t, eu, "eu", "1", `{"id": 1, "edited": "by hand"}`)
	w.apply(t, eu, "eu", "12", `{"id": 12}`)
	w.apply(t, eu, "eu", "99", `{"id": 99}`)
	require.NoError(t, os.Remove(filepath.Join(w.dir, "eu", "deployments", "4.json")))
	r := w.run(t, "diff", "eu")
	require.Equal(t, result{code: 1, stderr: "reconciler: 7 objects differ\n", stdout: `eu deployments/1: different: was changed in the target
eu deployments/11: missing: a running row wants it, and it was not applied yet
eu deployments/12: missing: a running row wants it, and it was not applied yet
eu deployments/2: stale: is in the target, and no running row wants it
eu deployments/3: different: its row changed after it was applied
eu deployments/4: missing: was applied, and is gone from the target
eu deployments/99: orphan: is in the target, and neither a row nor the ledger knows it
`}, r)
	r = w.run(t, "diff", "--limit", "2", "-o", "json")
	require.Equal(t, 1, r.code)
	require.Equal(t, "note: 8 more are not listed; --limit shows more\nreconciler: 10 objects differ\n", r.stderr)
	require.Equal(t, result{stdout: "no differences: 1 target, 1 running row compared\n"}, w.run(t, "diff", "us"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no target \"mars\" is configured\nhint: Targets of the configuration: eu, us, ap\n"}, w.run(t, "diff", "mars"))

	w.db.Exec(t, "UPDATE reconciler.targets SET draining = true WHERE name = 'us'")
	require.Equal(t, "us deployments/5: stale: is in the target, and no running row wants it\n", w.run(t, "diff", "us").stdout, "it is being emptied")
}

func TestDiffChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	state := func() string {
		return w.value(t, `SELECT md5(string_agg(x::text, E'\n' ORDER BY x::text)) FROM (
			SELECT l::text FROM reconciler.ledger l UNION ALL SELECT o::text FROM reconciler.outbox o UNION ALL SELECT s::text FROM reconciler.sync_runs s) AS u(x)`)
	}
	w.db.Exec(t, "UPDATE public.deployments SET image = 'app:2'")
	before := state()
	require.Equal(t, 1, w.run(t, "diff").code)
	require.Equal(t, before, state())
}

// A row whose expressions fail is named, and hides no other.
func TestDiffNamesRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, `CREATE TABLE public.jobs (id int PRIMARY KEY, divisor int NOT NULL);
		SELECT reconciler.track('jobs', 'public.jobs', '{id}', '''us''', spec => 'to_jsonb(10 / divisor)');
		INSERT INTO public.jobs VALUES (1, 1), (2, 0), (3, 5)`)
	require.Equal(t, `us jobs/1: missing: a running row wants it, and it was not applied yet
us jobs/2: unreadable: its row cannot be read: division by zero
us jobs/3: missing: a running row wants it, and it was not applied yet
`, w.run(t, "diff", "us").stdout)
}

func TestDiffOfATargetThatNoProcessEverHad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, os.Mkdir(filepath.Join(w.dir, "mars"), 0o700))
	file := w.write(t, "mars.yaml", "database_url: '"+w.db.URL+"'\ntargets: [{name: mars, driver: file, options: {dir: '"+filepath.Join(w.dir, "mars")+"'}}]\n")
	require.Equal(t, result{stdout: "no differences: 1 target, 0 running rows compared\n"}, w.run(t, "diff", "-c", file))
	w.db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (77, 'mars')")
	require.Equal(t, result{code: 1, stdout: "mars deployments/77: missing: a running row wants it, and it was not applied yet\n", stderr: "reconciler: 1 object differs\n"},
		w.run(t, "diff", "-c", file))
}
