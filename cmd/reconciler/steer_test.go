package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// finishSyncs waits for requests of a sync and ends them as a process would.
func (w *world) finishSyncs(t *testing.T, n int, state, set string) {
	t.Helper()
	require.Eventually(t, func() bool {
		tag, err := w.db.Pool.Exec(t.Context(), `UPDATE reconciler.sync_runs SET state = '`+state+`', started_at = '2026-01-02 03:05:00+00', finished_at = '2026-01-02 03:05:01+00'`+set+`
			WHERE state = 'requested' AND (SELECT count(*) FROM reconciler.sync_runs WHERE state = 'requested') >= $1`, n)
		require.NoError(t, err)
		return tag.RowsAffected() > 0
	}, patience, 5*time.Millisecond, "no sync was requested")
}

func TestSyncWaits(t *testing.T) {
	t.Parallel()
	const heading = "TARGET  STATE     MODE    ROWS  UPSERTS  TOMBSTONES  DRIFTED  HELD  ERROR\n"
	for name, test := range map[string]struct {
		args       []string
		state, set string
		want       result
	}{
		"UntilEverythingIsApplied": {
			[]string{"sync", "us", "--wait"}, "complete", ", rows = 1",
			result{stdout: heading + "us      complete  repair  1     0        0           0        0     -\n", stderr: "everything is applied\n"},
		},
		"AndSaysThatItFailed": {
			[]string{"sync", "us", "--wait"}, "failed", ", error = 'no listing'",
			result{
				code: 1, stderr: "everything is applied\nreconciler: the sync of us failed: no listing\n",
				stdout: "TARGET  STATE   MODE    ROWS  UPSERTS  TOMBSTONES  DRIFTED  HELD  ERROR\nus      failed  repair  0     0        0           0        0     no listing\n",
			},
		},
		"AndSaysThatTheReportFoundSomething": {
			[]string{"sync", "us", "--report", "--wait"}, "complete", ", drifted = 2",
			result{
				code: 1, stderr: "everything is applied\nreconciler: something differs\nhint: `reconciler status --drift` lists it\n",
				stdout: heading + "us      complete  report  0     0        0           2        0     -\n",
			},
		},
		"AndIsQuietAboutAReportThatFoundNothing": {
			[]string{"sync", "us", "--report", "--wait"}, "complete", ", rows = 1",
			result{stdout: heading + "us      complete  report  1     0        0           0        0     -\n", stderr: "everything is applied\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.db.Exec(t, "UPDATE reconciler.targets SET paused_at = NULL")
			done := make(chan result, 1)
			go func() { done <- w.runContext(t.Context(), test.args...) }()
			w.finishSyncs(t, 1, test.state, test.set)
			require.Equal(t, test.want, <-done)
		})
	}

	t.Run("NoLongerThanItMay", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		r := w.run(t, "sync", "us", "--wait", "--timeout", "50ms", "-o", "json")
		require.Equal(t, 4, r.code)
		require.Regexp(t, "^us: syncing: resync sync is requested; us is paused by alice .*\nreconciler: not everything was applied within 50ms\n$", r.stderr)
		require.Contains(t, r.stdout, `"state": "requested"`)
	})
}

func TestSyncAsksOnceForWhatIsAskedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{stdout: "sync of ap, eu, us requested\n"}, w.run(t, "sync"))
	require.Equal(t, result{stdout: "report on ap (one that repairs was requested already), eu (one that repairs was requested already), us (one that repairs was requested already) requested\n"},
		w.run(t, "sync", "--report"))
	require.Equal(t, "3 repair", w.value(t, "SELECT count(*) || ' ' || min(mode) FROM reconciler.sync_runs WHERE state = 'requested'"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no resource is named 'apps'\nhint: Resources: deployments\n"}, w.run(t, "sync", "--resource", "apps"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no resource is named 'apps'\nhint: Resources: deployments\n"}, w.run(t, "sync", "--report", "--resource", "apps"))

	w.db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'eu'")
	require.Equal(t, result{code: 2, stderr: "reconciler: no running process has target 'eu' in its config, so nobody can sync it\n" +
		"hint: Put it into the config of a process, or forget it: SELECT reconciler.release('eu');\n"}, w.run(t, "sync", "eu"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no running process has the target in its config, so nobody can sync it\nhint: Targets: ap, eu, us\n"},
		w.run(t, "sync", "eu", "--report"))
}

// C36: the daemon hears of what the command line orders.
func TestOrdersAreHeard(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"Pause": {"pause", "eu"}, "Resume": {"resume", "us"}, "Retry": {"retry", "eu"}, "Approve": {"approve", "ap"}, "Sync": {"sync", "eu"},
		"Report": {"sync", "eu", "--report"}, "Release": {"release", "us", "--objects", "delete"}, "Untrack": {"untrack", "deployments"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			listener := w.db.Conn(t)
			_, err := listener.Exec(t.Context(), "LISTEN reconciler_control")
			require.NoError(t, err)
			require.Zero(t, w.run(t, args...).code)
			_, err = listener.WaitForNotification(t.Context())
			require.NoError(t, err)
		})
	}
}

func TestRetryTakesAnObjectAResourceOrATarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{stdout: "1 object to be tried again now\n"}, w.run(t, "retry", "eu", "deployments", "4"))
	require.Equal(t, result{stdout: "2 objects to be tried again now\n"}, w.run(t, "retry", "eu", "deployments"))
	require.Equal(t, result{stdout: "0 objects to be tried again now\n", stderr: "note: object '1' is applied: there is nothing to retry\n"}, w.run(t, "retry", "eu", "deployments", "1"))
	require.Equal(t, result{code: 2, stderr: "reconciler: target eu has no object '77' of resource deployments\n" +
		"hint: What is known of it: SELECT reconciler.explain('eu', 'deployments', '77');\n"}, w.run(t, "retry", "eu", "deployments", "77"))
}

func TestPauseKeepsItsReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{stdout: "{\n  \"message\": \"eu is paused, until SELECT reconciler.resume('eu');\"\n}\n"}, w.run(t, "pause", "eu", "--reason", "it's broken", "-o", "json"))
	require.Equal(t, "it's broken", w.value(t, "SELECT paused_reason FROM reconciler.targets WHERE name = 'eu'"))
	require.Equal(t, result{stdout: "us goes on; 0 held objects due\n"}, w.run(t, "resume", "us"))
	require.Equal(t, result{stdout: "us was not paused\n"}, w.run(t, "resume", "us"))
}

// C39.
func TestReleaseForgetsATargetThatIsInNoConfig(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'us'")
	require.Equal(t, result{stdout: "target us is forgotten, with 1 object that it keeps\n"}, w.run(t, "release", "us"))
	require.Equal(t, result{code: 2, stderr: "reconciler: --objects: must be keep or delete, not \"drop\"\nhint: see `reconciler release --help`\n"},
		w.run(t, "release", "eu", "--objects", "drop"))
}

func TestUntrackDeletesWhenToldTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{stdout: "9 objects of deployments are being deleted\n"}, w.run(t, "untrack", "deployments", "--release", "delete"))
	require.Equal(t, result{code: 2, stderr: "reconciler: no resource is named 'apps'\nhint: Resources: deployments\n"}, w.run(t, "untrack", "apps"))
}
