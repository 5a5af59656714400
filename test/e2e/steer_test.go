package e2e_test

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// fifty is a world with fifty apps in one file target that has the default guard, and a daemon.
func fifty(t *testing.T, change ...object) (*world, *daemon) {
	t.Helper()
	w := newWorld(t)
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 50) AS i`)
	target := w.fileTarget("eu", change...)
	delete(target, "guard")
	w.configure([]object{target})
	d := w.start()
	w.wait()
	require.Len(t, files(t, w.path("eu")), 50)
	return w, d
}

// waited is the result of `reconciler wait -o json`.
type waited struct {
	Applied  bool
	TimedOut bool `json:"timed_out"`
	Waiting  []struct{ Target, Resource, Key, State, Reason string }
}

// I6, C36, C47: more deletes than the guard allows are held until somebody approves them.
func TestHeldDeletesWaitForTheCommandApprove(t *testing.T) {
	t.Parallel()
	w, _ := fifty(t)
	w.exec(`DELETE FROM apps WHERE id <= 30`)
	w.becomes("30", `SELECT count(*) FROM reconciler.objects WHERE held_by = 'guard'`)
	require.Len(t, files(t, w.path("eu")), 50)
	status := w.status()["eu"]
	require.Equal(t, "held", status.State)
	require.Equal(t, 30, status.Held)
	var held []struct{ Target, Resource, Key, Reason string }
	require.Equal(t, 0, w.json(&held, "status", "--held").code)
	require.Len(t, held, 30)
	var left waited
	require.Equal(t, 1, w.json(&left, "wait", "--timeout", patience.String()).code)
	require.False(t, left.Applied)
	require.False(t, left.TimedOut)
	require.Len(t, left.Waiting, 30)
	require.Equal(t, "held", left.Waiting[0].State)

	require.Equal(t, "30 deletes of eu approved\n", w.ok("approve", "eu"))
	w.wait()
	require.Equal(t, w.rows()["eu"], files(t, w.path("eu")))
	require.Equal(t, "ok", w.status()["eu"].State)
	require.Equal(t, "the guard holds nothing of eu\n", w.ok("approve", "eu"))
}

// held waits until the pause of a target is obeyed: a change of a row is held then.
func (w *world) held(id int) {
	w.t.Helper()
	eventually(w.t, patience, func() error {
		w.exec(`UPDATE apps SET version = version + 1 WHERE id = $1`, id)
		if n := w.text(`SELECT count(*) FROM reconciler.objects WHERE key = $1 AND held_by = 'pause'`, strconv.Itoa(id)); n != "1" {
			return errors.New("it is not held")
		}
		return nil
	}, "the pause is obeyed")
}

// C36: pause and resume are obeyed.
func TestPauseAndResumeAreObeyed(t *testing.T) {
	t.Parallel()
	w, _ := fifty(t)
	w.ok("pause", "eu", "--reason", "lunch")
	w.held(50)
	w.exec(`UPDATE apps SET version = 2 WHERE id = 1; DELETE FROM apps WHERE id = 2; INSERT INTO apps (id, region) VALUES (51, 'eu')`)
	w.becomes("4", `SELECT count(*) FROM reconciler.objects WHERE held_by = 'pause'`)
	require.Equal(t, "paused", w.status()["eu"].State)
	require.Equal(t, 1, w.cli("wait").code)
	require.Regexp(t, `(?m)^Target: eu is paused by postgres since .*: lunch`, w.ok("explain", "eu", "app", "1"))
	have := files(t, w.path("eu"))
	require.Equal(t, "{\"id\": 1, \"version\": 1}\n", have["app/1.json"])
	require.Contains(t, have, "app/2.json")
	require.Len(t, have, 50)
	w.ok("resume", "eu")
	eventually(t, patience, func() error { return w.differs("eu", w.rows()["eu"]) }, "resumed")
}

// A program that fails as long as there is a file that says with which exit status.
const failing = `cat > "$0/object"; [ ! -e "$0/status" ] || { echo "told to fail" >&2; exit "$(cat "$0/status")"; }`

// C26, C30, C36: what failed waits for its time, what was refused for its row; `retry` has both tried now.
func TestRetryHasObjectsTriedNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(fleet)
	require.NoError(t, os.Mkdir(w.path("eu"), 0o700))
	told := w.path("eu/status")
	w.configure([]object{{
		"name": "eu", "driver": "exec", "options": object{"command": []string{"sh", "-c", failing, w.path("eu")}},
		"backoff": object{"min": "1h", "max": "2h"},
	}})
	w.start()
	w.wait() // the first sync calls what it finds, due or not
	for status, state := range map[string]string{"1": "failing", "65": "blocked"} {
		require.NoError(t, os.WriteFile(told, []byte(status), 0o600))
		w.exec(`INSERT INTO apps (id, region) VALUES ($1, 'eu')`, status)
		w.becomes(state, `SELECT state FROM reconciler.objects WHERE key = $1`, status)
		require.Equal(t, "sh: exit status "+status+": told to fail", w.text(`SELECT last_error FROM reconciler.failing WHERE key = $1`, status))
		require.NoError(t, os.Remove(told))
		require.Equal(t, "1 object to be tried again now\n", w.ok("retry", "eu", "app", status))
		w.becomes("applied", `SELECT state FROM reconciler.objects WHERE key = $1`, status)
		require.Equal(t, "0", w.text(`SELECT attempts FROM reconciler.objects WHERE key = $1`, status))
	}
	var retried map[string]int
	require.Equal(t, 0, w.json(&retried, "retry", "eu").code)
	require.Equal(t, map[string]int{"retried": 0}, retried)
	require.Equal(t, 2, w.cli("retry", "mars").code)
}

// C37: `wait` ends with 0 when everything is applied, with 4 at its timeout, and with 1 when waiting cannot help; it
// names what is not applied.
func TestWaitTellsHowItEnded(t *testing.T) {
	t.Parallel()
	w, d, openGate := busy(t, "1m")
	var left waited
	require.Equal(t, 4, w.json(&left, "wait", "--timeout", "3s", "--target", "eu").code)
	require.True(t, left.TimedOut)
	require.False(t, left.Applied)
	require.NotEmpty(t, left.Waiting)
	require.Equal(t, "eu", left.Waiting[0].Target)
	r := w.cli("wait", "--timeout", "0s")
	require.Equal(t, 4, r.code)
	require.Equal(t, "reconciler: not everything was applied within 0s\n", r.stderr)
	openGate()
	require.Equal(t, 0, w.json(&left, "wait", "--timeout", patience.String()).code)
	require.Equal(t, waited{Applied: true, Waiting: left.Waiting}, left)
	require.Empty(t, left.Waiting)
	require.Len(t, files(t, w.path("eu/objects")), 8)

	w.ok("pause", "eu")
	w.held(8)
	w.exec(`UPDATE apps SET version = 2 WHERE id = 3`)
	r = w.cli("wait", "--timeout", patience.String())
	require.Equal(t, 1, r.code, r.stdout)
	require.Equal(t, "reconciler: not everything is applied, and waiting cannot help\n", r.stderr)
	w.ok("resume", "eu")
	require.Equal(t, 0, w.cli("wait").code)
	require.Equal(t, 2, w.cli("wait", "--target", "mars").code)
	d.stop()
	w.exec(`UPDATE apps SET version = 3`)
	require.Equal(t, 4, w.cli("wait", "--timeout", "3s").code, "nobody works")
}

// C49: in report mode drift is shown and nothing is touched; `diff` sees it without any sync.
func TestDriftIsReportedAndThenRepaired(t *testing.T) {
	t.Parallel()
	w, _ := fifty(t)
	good := files(t, w.path("eu"))
	require.NoError(t, os.WriteFile(w.path("eu/app/1.json"), []byte("edited"), 0o600))
	require.NoError(t, os.Remove(w.path("eu/app/2.json")))
	require.NoError(t, os.WriteFile(w.path("eu/app/99.json"), []byte("{}"), 0o600))
	require.NoError(t, os.WriteFile(w.path("eu/app/not ours"), []byte("{}"), 0o600))
	bad := files(t, w.path("eu"))
	kinds := func(all []object) map[string]string {
		byKey := map[string]string{}
		for _, one := range all {
			byKey[one["key"].(string)] = one["kind"].(string)
		}
		return byKey
	}
	drifted := map[string]string{"1": "different", "2": "missing", "99": "orphan"}
	var found []object
	require.Equal(t, 1, w.json(&found, "diff").code)
	require.Equal(t, drifted, kinds(found))
	require.Equal(t, 1, w.cli("sync", "eu", "--report", "--wait", "--timeout", patience.String()).code)
	require.Equal(t, 0, w.json(&found, "status", "--drift").code)
	require.Equal(t, drifted, kinds(found))
	require.Equal(t, bad, files(t, w.path("eu")), "a report touches nothing")

	w.ok("sync", "eu", "--wait")
	good["app/not ours"] = "{}"
	require.Equal(t, good, files(t, w.path("eu")))
	require.Equal(t, 0, w.json(&found, "diff").code)
	require.Empty(t, found)
	require.Equal(t, "no differences: 1 target, 50 running rows compared\n", w.ok("diff"))
}

// C39: `release --objects delete` empties a target that is still in the config, past the guard.
func TestReleaseEmptiesATarget(t *testing.T) {
	t.Parallel()
	w, _ := fifty(t)
	require.Equal(t, "50 objects of eu to be deleted there\n", w.ok("release", "eu", "--objects", "delete"))
	w.has("eu", nil)
	w.becomes("0", `SELECT count(*) FROM reconciler.objects`)
}

// Every command that prints prints one JSON document with -o json, whatever it finds.
func TestEveryResultParsesAsJSON(t *testing.T) {
	t.Parallel()
	w, _ := fifty(t)
	hostile := "\x1b[31m\"<b>'\\\n\u2028"
	w.exec(`CREATE TABLE odd (key text PRIMARY KEY, region text)`)
	for _, args := range [][]string{
		{"track", "odd", "odd", "--key", "key", "--target", "region", "--spec", "to_jsonb(key)"},
		{"status"}, {"status", "--held"}, {"status", "--drift"}, {"status", "--failing"}, {"status", "--pending"}, {"status", "--objects"},
		{"wait"}, {"explain", "eu", "odd", hostile}, {"explain", "eu", "app", "1"}, {"diff"}, {"doctor"}, {"config", "print"}, {"version"},
		{"pause", "eu", "--reason", hostile}, {"status"}, {"resume", "eu"}, {"approve", "eu"}, {"retry", "eu"}, {"sync", "eu"}, {"sync", "eu", "--wait"},
		{"migrate", "up"}, {"migrate", "status"}, {"grant", "postgres", "viewer"}, {"untrack", "odd"},
	} {
		if args[0] == "explain" {
			w.exec(`INSERT INTO odd VALUES ($1, 'eu') ON CONFLICT DO NOTHING`, hostile)
			w.wait()
		}
		var document any
		r := w.json(&document, args...)
		require.Less(t, r.code, 2, "%v: %s%s", args, r.stdout, r.stderr)
		require.NotContains(t, r.stdout, "\x1b", args)
	}
}
