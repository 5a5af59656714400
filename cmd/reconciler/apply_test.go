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
