package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// findings runs doctor and returns what is wrong, with its remedy, by check.
func (w *world) findings(t *testing.T) map[string][]string {
	t.Helper()
	r := w.run(t, "doctor", "-o", "json")
	var all []struct {
		Check   string `json:"check_name"`
		OK      bool   `json:"ok"`
		Finding string `json:"finding"`
		Remedy  string `json:"remedy"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &all), r.stderr)
	wrong := map[string][]string{}
	for _, f := range all {
		if !f.OK {
			wrong[f.Check] = append(wrong[f.Check], f.Finding+" -> "+f.Remedy)
		}
	}
	require.Equal(t, len(wrong) > 0, r.code == 1)
	return wrong
}

// heal makes everything right in the database.
func (w *world) heal(t *testing.T) {
	t.Helper()
	w.db.Exec(t, `UPDATE reconciler.targets SET paused_at = NULL, paused_by = NULL, guard_since = NULL, guard_deletes = NULL;
		DELETE FROM reconciler.ledger WHERE state <> 'applied'`)
}

func TestDoctorIsContentWhenAllIsWell(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.heal(t)
	require.Empty(t, w.findings(t))
	r := w.run(t, "doctor")
	require.Zero(t, r.code)
	require.Empty(t, r.stderr)
	require.NotContains(t, r.stdout, "WRONG")
}

func TestDoctorLooksAtTheConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.heal(t)
	secret := withPassword(w.db.URL)

	w.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\n", w.db.URL))
	require.Equal(t, map[string][]string{"config": {"no target is configured (read: /etc/reconciler/reconciler.yaml) -> Name a target, or the config file with -c FILE."}}, w.findings(t))

	w.config(t, secret)
	require.Empty(t, w.findings(t), "only the owner can read it")
	require.NoError(t, os.Chmod(filepath.Join(w.dir, "reconciler.yaml"), 0o644))
	require.Equal(t, map[string][]string{"secrets": {
		"/etc/reconciler/reconciler.yaml holds a password and can be read by other users -> chmod 600 /etc/reconciler/reconciler.yaml; or give the URL in RECONCILER_DATABASE_URL",
	}}, w.findings(t))
	w.config(t, w.db.URL)
	require.Empty(t, w.findings(t))
}

// A target that waits for reports needs a token that may report.
func TestDoctorLooksForATokenThatMayReport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.heal(t)
	const target = "targets:\n  - {name: edge, driver: stream, options: {ack: true}}\n"
	for streams, want := range map[string]int{
		"": 0, // on loopback everyone may report
		"streams: {tokens: [{name: edge, token_env: EDGE, targets: [edge]}]}\n":                        1,
		"streams: {tokens: [{name: edge, token_env: EDGE, targets: [edge], allow: [read, report]}]}\n": 0,
	} {
		w.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\n", w.db.URL)+streams+target)
		require.Len(t, w.findings(t)["ack"], want, streams)
	}
}

func TestDoctorTriesListen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.heal(t)
	other := pgtest.New(t)
	w.environ = []string{"RECONCILER_DATABASE_URL=" + other.URL, "RECONCILER_DIRECT_URL=" + w.db.URL}
	require.Equal(t, map[string][]string{"listen": {
		"what is notified through database_url is not heard on direct_url within 3s -> direct_url must lead to the server itself, without a pooler in between, and to the same database as database_url",
	}}, w.findings(t))

	w.environ = append(w.environ, "RECONCILER_NOTIFY=off")
	require.Empty(t, w.findings(t))
	require.Contains(t, w.run(t, "doctor").stdout, "ok     listen                 notify is off: changes are found by polling every 200ms\n")

	w.environ = []string{"RECONCILER_DATABASE_URL=postgres://app@127.0.0.1:1/shop", "RECONCILER_DIRECT_URL=" + w.db.URL}
	require.Equal(t, map[string][]string{"listen": {
		"LISTEN could not be tried: cannot connect to database \"shop\" at 127.0.0.1:1 as user \"app\": connection refused -> Correct direct_url and database_url; see `reconciler config print`.",
	}}, w.findings(t))
}

func TestDoctorAsksTheTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.heal(t)
	w.write(t, "reconciler.yaml", fmt.Sprintf(`database_url: %q
targets:
  - {name: eu, driver: file, options: {dir: %q}}
  - {name: us, driver: webhook, options: {url: "http://127.0.0.1:1/", secret_env: NO_SUCH_SECRET}}
`, w.db.URL, filepath.Join(w.dir, "eu")))
	wrong := w.findings(t)
	require.Len(t, wrong, 1)
	require.Len(t, wrong["target"], 1)
	require.True(t, strings.HasPrefix(wrong["target"][0], "target us: options.secret_env: "), wrong["target"][0])
}
