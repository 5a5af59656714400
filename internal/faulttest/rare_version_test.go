//go:build long

package faulttest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// versions returns the versions of the processes that own targets.
func (w *rareWorld) versions() string {
	w.t.Helper()
	return w.text(`SELECT coalesce(string_agg(DISTINCT i.version, ', ' ORDER BY i.version), '') FROM reconciler.targets t JOIN reconciler.instances i ON i.id = t.owner WHERE reconciler.lease_lives(t.owner, t.lease_ttl)`)
}

// refused runs a daemon, which must end by itself, and returns its exit code and what it said.
func (w *rareWorld) refused(s rareStart) (code int, said string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), rarePatience, errors.New("the daemon does not end"))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, "run", "-c", s.config)
	cmd.Dir, cmd.Env = w.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	require.NoError(w.t, context.Cause(ctx))
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(w.t, ok, "%v", err)
	return exit.ExitCode(), output.String()
}

// C53, C54: the processes of one version are replaced by those of another one, one after the other, while rows change.
// For a time both are at work, side by side. The first goes in good order, the second is killed.
func TestRareRollingUpgradeLosesNothing(t *testing.T) {
	t.Parallel()
	r := rareChance(t)
	w := newRareWorld(t, pgtest.New(t))
	w.fill(100, "eu", "us")
	us := newRareEndpoint(t, "127.0.0.1")
	us.slow(10 * time.Millisecond)
	config := w.configure("all", []rareObject{w.fileTarget("eu"), us.target("us")})
	old, fresh := rareStart{binary: rareBinary(t, "old"), config: config}, rareStart{binary: rareBinary(t, "new"), config: config}
	require.Contains(t, w.cli(old, "version"), "reconciler old (")

	first, second := w.start(old), w.start(old)
	rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), first, second) }, "each owns a target")
	require.Equal(t, "old", w.versions())
	writers := w.write(r, 100, "eu", "us")
	pass(time.Duration(r.Int64N(int64(500*time.Millisecond))), first.exited)
	first.stop()
	third := w.start(fresh)
	rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), second, third) }, "each owns a target")
	require.Equal(t, "new, old", w.versions())
	pass(time.Duration(r.Int64N(int64(500*time.Millisecond))), second.exited)
	second.kill()
	w.ownedBy(rareTakeover, map[string]string{"eu": third.pid(), "us": third.pid()})
	fourth := w.start(fresh)
	rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), third, fourth) }, "each owns a target")
	require.Equal(t, "new", w.versions())
	writers.stop()
	w.wait(fresh)
	w.equal(w.files, "eu")
	w.equal(us.have, "us")
	require.NoError(t, rareInOrder(us.journal()), "VIOLATION: calls out of order")
	for _, d := range []*rareDaemon{first, second, third, fourth} {
		require.Empty(t, d.failures())
	}
	third.stop()
	fourth.stop()
}

// C54: a process finds that the schema has become newer than it is. It goes on, for a migration takes nothing away from
// the version before, also on new connections and after it took over; but it does not start like that.
func TestRareSchemaThatBecomesNewerIsGoneOnWith(t *testing.T) {
	t.Parallel()
	w := newRareWorld(t, pgtest.New(t))
	w.fill(20, "eu", "us")
	us := newRareEndpoint(t, "127.0.0.1")
	old := rareStart{binary: rareBinary(t, "old"), config: w.configure("all", []rareObject{w.fileTarget("eu"), us.target("us")})}
	first, second := w.start(old), w.start(old)
	rareEventually(t, rarePatience, func() error { return rareShared(w.owners(), first, second) }, "each owns a target")
	newest := w.text(`SELECT max(version_id) FROM reconciler.goose_db_version`)
	w.exec(`INSERT INTO reconciler.goose_db_version (version_id, is_applied) VALUES (999, true)`)
	goesOn := func() {
		t.Helper()
		w.exec(`UPDATE apps SET version = nextval('versions'); DELETE FROM apps WHERE id = (SELECT max(id) FROM apps)`)
		w.wait(old)
		w.equal(w.files, "eu")
		w.equal(us.have, "us")
	}
	goesOn()
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler %'`)
	goesOn()
	first.stop()
	w.ownedBy(rareTakeover, map[string]string{"eu": second.pid(), "us": second.pid()})
	goesOn()

	code, said := w.refused(old)
	require.Equal(t, 3, code)
	require.Equal(t, fmt.Sprintf("reconciler: the database has schema version 999, this binary knows up to %s: use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)\n", newest), said)
	goesOn()
	second.stop()
}
