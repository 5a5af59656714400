package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// upgraded builds the command once more as a later version, which has one more migration.
func (w *world) upgraded() string {
	w.t.Helper()
	migrations, err := filepath.Abs("../../db/migrations")
	require.NoError(w.t, err)
	const later = "-- +goose Up\nALTER TABLE reconciler.installation ADD COLUMN later boolean NOT NULL DEFAULT true;\n\n-- +goose Down\nALTER TABLE reconciler.installation DROP COLUMN later;\n"
	require.NoError(w.t, os.WriteFile(w.path("later.sql"), []byte(later), 0o600))
	overlay, err := json.Marshal(object{"Replace": object{filepath.Join(migrations, "00998_later.sql"): w.path("later.sql")}})
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.path("overlay.json"), overlay, 0o600))
	path := w.path("upgraded")
	said, err := exec.CommandContext(w.t.Context(), "go", "build", "-overlay", w.path("overlay.json"), "-ldflags=-X main.version=upgraded", "-o", path, "../../cmd/reconciler").CombinedOutput()
	require.NoError(w.t, err, "%s", said)
	return path
}

// C54: a fleet is upgraded while it works. The new binary migrates beside the old one, which goes on with what it has and
// shares its targets with the new; nothing is lost or fails. Once it has stopped it does not start again, and says why.
func TestUpgradeBesideAnOldBinary(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	fresh := w.upgraded()
	regions := []string{"eu", "us"}
	w.exec(fleet + ";" + versions)
	w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us'])[1 + i % 2] FROM generate_series(1, 60) AS i`)
	w.configure([]object{w.fileTarget("eu"), w.fileTarget("us")})
	old := w.start()
	w.wait()
	writers := w.write(r, load{writers: 3, every: 15 * time.Millisecond, objects: 60, regions: regions})
	before := w.text(`SELECT max(version_id) FROM reconciler.goose_db_version`)

	// Before the migration the new one does not start.
	w.binary = fresh
	require.Equal(t, result{code: 3, stderr: "reconciler: the database has schema version " + before + ", this binary needs 998: run `reconciler migrate up`\n"}, w.refused())
	w.ok("migrate", "up")
	d := w.start()
	w.becomes("2", `SELECT count(DISTINCT owner) FROM reconciler.targets`)
	pass(between(r, time.Second, 2*time.Second), old.exited)
	w.becomes("upgraded 1", `SELECT string_agg(version || ' ' || n, ', ') FROM (SELECT i.version, count(*) AS n FROM reconciler.targets t JOIN reconciler.instances i ON i.id = t.owner WHERE i.version = 'upgraded' GROUP BY 1) AS v`)
	old.stop()
	pass(between(r, 0, time.Second), d.exited)

	w.binary = binary
	require.Equal(t, result{code: 3, stderr: fmt.Sprintf("reconciler: the database has schema version 998, this binary knows up to %s: use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)\n", before)}, w.refused())
	writers.stop()
	w.binary = fresh
	w.converges(regions...)
	for _, one := range []*daemon{old, d} {
		one.failedNothing()
	}

	// And back: the new binary takes its migration along.
	d.stop()
	w.ok("migrate", "down")
	w.binary = binary
	w.start()
	w.exec(`UPDATE apps SET version = nextval('versions')`)
	w.converges(regions...)
}

// C51: a target that has moved, to another directory or another endpoint, is given everything there, without any row
// having changed; one that has not moved is not called.
func TestMovedTargetIsGivenEverything(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.env = []string{"PROCESS=one"}
	here, there := newReceiver(t, 0), newReceiver(t, 0)
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us', 'ap'])[1 + i % 3] FROM generate_series(1, 30) AS i`)
	still := here.target("ap")
	w.configure([]object{w.fileTarget("eu"), here.target("us"), still})
	d := w.start()
	w.wait()
	want := w.rows()
	require.NoError(t, here.differs("us", want["us"]))
	calls := here.calls("ap")
	d.stop()

	w.configure([]object{w.fileTarget("eu", object{"options": object{"dir": w.path("elsewhere")}}), there.target("us"), still})
	d = w.start()
	d.awaits("target_acquired", "target", "eu", "options_changed", true)
	d.awaits("target_acquired", "target", "us", "options_changed", true)
	d.awaits("target_acquired", "target", "ap", "options_changed", false)
	w.wait()
	require.NoError(t, w.differs("elsewhere", want["eu"]))
	require.NoError(t, there.differs("us", want["us"]))
	require.NoError(t, w.differs("eu", want["eu"]), "what it had there is left alone")
	require.Equal(t, calls, here.calls("ap"))
}
