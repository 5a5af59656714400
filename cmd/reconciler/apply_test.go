package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// applyWorld is a world with apply 1, open: a change of each target's rows.
func applyWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.db.Exec(t, "BEGIN; SELECT reconciler.begin_apply('release 42'); UPDATE deployments SET image = image || '-2' WHERE id IN (1, 2, 3, 4); COMMIT")
	require.Equal(t, "true", w.value(t, "SELECT reconciler.open_apply(l.owner, l.term, 1, 11, 1000)::text FROM reconciler.leases l"))
	return w
}

func TestApplyIsFollowedAndSteered(t *testing.T) {
	t.Parallel()
	w := applyWorld(t)
	shown := w.run(t, "apply", "show", "1")
	require.Zero(t, shown.code)
	require.Contains(t, shown.stdout, "apply 1 (release 42): pending\n")
	require.Contains(t, shown.stdout, "Next: Wait: ")
	require.Contains(t, shown.stdout, "next in order")

	require.Equal(t, result{stdout: "apply 1 is stopped, until SELECT reconciler.apply_start(1);\n"}, w.run(t, "apply", "stop", "1", "--reason", "too early"))
	require.Equal(t, result{stdout: "apply 1 is stopped already\n"}, w.run(t, "apply", "stop", "1"))
	require.Equal(t, result{code: 1, stdout: "apply 1 is stopped\n", stderr: "reconciler: apply 1 is stopped\nhint: To go on: SELECT reconciler.apply_start(1);\n"},
		w.run(t, "apply", "wait", "1", "--timeout", "1m"))
	require.Equal(t, result{code: 2, stderr: "reconciler: apply 1 is stopped, so it cannot be released\nhint: To go on: SELECT reconciler.apply_start(1);\n"}, w.run(t, "apply", "release", "1"))
	require.Equal(t, result{stdout: "apply 1 goes on, it is pending\n"}, w.run(t, "apply", "start", "1"))
	timeout := w.run(t, "apply", "wait", "1", "--timeout", "0s")
	require.Equal(t, 4, timeout.code)
	require.Equal(t, "apply 1 is pending\n", timeout.stdout)
	require.Contains(t, w.run(t, "apply", "cancel", "1").stdout, "apply 1 is cancelled; ")
	require.Equal(t, result{stdout: "no apply is under way\n"}, w.run(t, "apply", "list"))
	require.Contains(t, w.run(t, "apply", "list", "--all").stdout, "release 42")
	require.Contains(t, w.run(t, "apply", "show", "1", "-o", "json").stdout, `"by_target"`)
	require.Zero(t, w.run(t, "apply", "watch", "1").code, "it has ended")
	require.Equal(t, "too early", w.value(t, "SELECT why FROM reconciler.apply_log WHERE what = 'stop'"))
}

func TestApplyWithoutTargetsSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "SELECT reconciler.begin_apply('release 42')")
	require.Equal(t, result{stdout: `apply 1 (release 42): pending
0 of 0 targets done; 0 of 0 objects completed, 0 failed, 0 superseded, 0 pending
Next: Wait: the leader is writing down its objects. Process host-1 leads.

its objects are being written down
`}, w.run(t, "apply", "show", "1"))
	require.Equal(t, "true", w.value(t, "SELECT reconciler.open_apply(l.owner, l.term, 1, 11, 1000)::text FROM reconciler.leases l"))
	require.Contains(t, w.run(t, "apply", "show", "1").stdout, "Next: Nothing: it is everywhere.\n\nit has changed nothing that is tracked\n")

	w.db.Exec(t, "SELECT reconciler.begin_apply('release 43')")
	w.value(t, "SELECT reconciler.fail_apply(l.owner, l.term, 2, 'out of order')::text FROM reconciler.leases l")
	require.Contains(t, w.run(t, "apply", "show", "2").stdout, "\n\nits objects were not written down\n")
}

// What an apply waits for is said once.
func TestApplySaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "BEGIN; SELECT reconciler.begin_apply('release 42', soak => '1 hour'); UPDATE deployments SET image = 'app:2' WHERE id <> 5; COMMIT")
	require.Equal(t, "true", w.value(t, "SELECT reconciler.open_apply(l.owner, l.term, 1, 11, 1000)::text FROM reconciler.leases l"))
	next := func() string { return w.value(t, "SELECT next FROM reconciler.apply_status") }
	require.Equal(t, "Wait: ap: next in order.", next())
	claim := func(target string) {
		w.value(t, "SELECT c.operation_ids::text FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') AS c WHERE t.name = $1", target)
	}
	claim("ap")
	require.Equal(t, "Wait: ap: running, 0 of 1 object.", next())
	w.value(t, settleTasks, "ap", "attempt")
	require.Regexp(t, `^Wait: ap: 0 of 1 object; 1 retrying, attempt 2\.$`, next())
	w.value(t, settleTasks, "ap", "done")
	require.Regexp(t, `^Wait: eu: soaking until 20[-0-9]+ [:0-9]+\+00\.$`, next())
	w.db.Exec(t, "SELECT reconciler.apply_stop(1)")
	require.Equal(t, "To go on: SELECT reconciler.apply_start(1);", next())
}

// settleTasks does what the owner of a target does with the results of all objects there that an apply has to do with.
const settleTasks = `SELECT reconciler.settle_tasks(t.id, t.owner, t.term, array_agg(k.operation_id), array_agg(k.resource_id), array_agg(k.key), array_agg($2::text), array_agg('no room'::text), array_agg('spec'::bytea))::text
	FROM reconciler.targets t JOIN reconciler.tasks k ON k.target_id = t.id WHERE t.name = $1 AND k.state = 'pending' GROUP BY t.id`

func TestApplyRefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{code: 2, stderr: "reconciler: an apply has a number, and \"x\" is none\nhint: `reconciler apply list` shows them\n"}, w.run(t, "apply", "show", "x"))
	require.Equal(t, result{code: 2, stderr: "reconciler: there is no apply 7\nhint: `reconciler apply list --all` shows them\n"}, w.run(t, "apply", "show", "7"))
	require.Equal(t, result{
		code:   2,
		stderr: "reconciler: there is no apply 7\nhint: There is none yet: SELECT reconciler.begin_apply(...) in a transaction makes one of its changes.\n",
	}, w.run(t, "apply", "stop", "7"))
}

func TestApplyResync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, result{stdout: "apply 1 begins; `reconciler apply watch 1` follows it\n"},
		w.run(t, "apply", "resync", "deployments", "--title", "again", "--target", "eu", "--target", "us", "--strategy", "waves", "--waves", `[["us"]]`, "--soak", "1m",
			"--labels", `{"ticket": "OPS-1"}`))
	require.Equal(t, `again waves 00:01:00 10 t {"ticket": "OPS-1"}`, w.value(t, "SELECT concat_ws(' ', title, strategy, soak, attempts, reapply, labels) FROM reconciler.applies"))
	require.Equal(t, w.value(t, "SELECT count(*)::text FROM reconciler.objects WHERE target IN ('eu', 'us') AND resource = 'deployments'"),
		w.value(t, "SELECT count(*)::text FROM reconciler.outbox o JOIN reconciler.applies a ON a.xid = o.xid WHERE o.key IS NOT NULL"))
	require.Equal(t, result{code: 2, stderr: "reconciler: --waves must be JSON, and \"eu, us\" is none\nhint: such as '[[\"eu\"], [\"us\", \"asia\"]]'\n"},
		w.run(t, "apply", "resync", "deployments", "--waves", "eu, us"))
	require.Equal(t, result{code: 2, stderr: "reconciler: --labels must be JSON, and \"OPS-1\" is none\nhint: such as '{\"ticket\": \"OPS-1\"}'\n"},
		w.run(t, "apply", "resync", "deployments", "--labels", "OPS-1"))
	refused := w.run(t, "apply", "resync", "deploymnts")
	require.Equal(t, 2, refused.code)
	require.Contains(t, refused.stderr, "no resource is named 'deploymnts'")
}

// F184, F185: an apply that failed and was rolled back is superseded: the command that was printed before starts nothing, and neither the
// exit code nor a hint calls it a success.
func TestF185_ApplyThatWasRolledBackIsSuperseded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.Exec(t, "BEGIN; SELECT reconciler.begin_apply('release 42'); UPDATE deployments SET image = 'app:2'; COMMIT")
	require.Equal(t, "true", w.value(t, "SELECT reconciler.open_apply(l.owner, l.term, 1, 11, 1000)::text FROM reconciler.leases l"))
	w.value(t, "SELECT c.operation_ids::text FROM reconciler.targets t, reconciler.claim_operations(t.id, t.owner, t.term, '30 s') AS c WHERE t.name = 'ap'")
	w.value(t, settleTasks, "ap", "failed")
	failed := w.run(t, "apply", "wait", "1")
	require.Equal(t, 1, failed.code)
	require.Contains(t, failed.stderr, "hint: Mend it, then try what failed again: SELECT reconciler.apply_retry(1); When that succeeds it goes on with 5 objects in 2 targets.")

	w.db.Exec(t, "BEGIN; SELECT reconciler.begin_apply('back'); UPDATE deployments SET image = 'app:1'; COMMIT")
	require.Equal(t, "true", w.value(t, "SELECT reconciler.open_apply(l.owner, l.term, 2, 11, 1000)::text FROM reconciler.leases l"))
	const next = "Nothing: newer changes have taken 6 of its 6 objects."
	require.Equal(t, result{code: 2, stderr: "reconciler: apply 1 is superseded, so it cannot be tried again\nhint: " + next + "\n"}, w.run(t, "apply", "retry", "1"))
	require.Equal(t, result{code: 1, stdout: "apply 1 is superseded\n", stderr: "reconciler: apply 1 is superseded: ap failed: 6: no room\nhint: " + next + "\n"}, w.run(t, "apply", "wait", "1"))
	shown := w.run(t, "apply", "show", "1")
	require.Contains(t, shown.stdout, "apply 1 (release 42): superseded\n3 of 3 targets done; 0 of 6 objects completed, 0 failed, 6 superseded, 0 pending\n")
	require.Contains(t, shown.stdout, "Next: "+next+"\n")
	require.Equal(t, "failed", w.value(t, "SELECT string_agg(state, ' ') FROM reconciler.apply_events WHERE apply_id = 1"))
}
