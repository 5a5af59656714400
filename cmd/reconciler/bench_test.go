//go:build long

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/bench"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// quick are the arguments of a bench whose figures mean nothing.
var quick = []string{"bench", "--writers", "2", "--rounds", "1", "--length", "50ms"}

// often are those of one that goes on and on.
var often = []string{"bench", "--writers", "2", "--rounds", "50", "--length", "50ms"}

// benchWorld is a world on a server of its own: what is left in a server is seen by every bench there.
type benchWorld struct{ *world }

// TestBench calls the command as a person does. Its parts are in order: they share a server, which ends as a standby.
func TestBench(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	w := benchWorld{newWorldIn(t, cluster.New(t))}
	t.Run("MeasuresAndLeavesNothing", w.measures)
	t.Run("PrintsATableAndSentences", w.prints)
	t.Run("LeavesNothingAfterASignal", w.isInterrupted)
	t.Run("DropsWhatAKilledRunLeftAndNothingElse", w.isKilled)
	t.Run("EndsWithItsLock", w.losesItsLock)
	t.Run("RefusesARoleThatMayNotCreateDatabases", w.lacksRights)
	t.Run("RefusesAPooler", w.meetsAPooler)
	t.Run("RefusesToTakeTheLastConnections", func(t *testing.T) { w.lacksConnections(t, cluster) })
	t.Run("RefusesAStandby", func(t *testing.T) { w.meetsAStandby(t, cluster) })
}

// scratch lists the scratch databases of the server.
func (w benchWorld) scratch(t *testing.T) string {
	t.Helper()
	return w.value(t, `SELECT coalesce(string_agg(datname, ' ' ORDER BY datname), '') FROM pg_database WHERE datname LIKE 'reconciler\_bench\_%'`)
}

// requireNothingLeft requires that no scratch database is there, no session of the command's, and no lock.
func (w benchWorld) requireNothingLeft(t *testing.T) {
	t.Helper()
	require.Empty(t, w.scratch(t))
	require.Eventually(t, func() bool { // a session ends a moment after it was closed
		return w.value(t, `SELECT count(*)::text FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name LIKE 'reconciler%'`) == "0"
	}, patience, 10*time.Millisecond)
	require.Equal(t, "0", w.value(t, `SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory'`))
}

// installation is everything that the product keeps in the user's database.
func (w benchWorld) installation(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for table := range strings.FieldsSeq(w.value(t, `SELECT string_agg(oid::regclass::text, ' ' ORDER BY oid::regclass::text) FROM pg_class
		WHERE relkind = 'r' AND relnamespace IN ('reconciler'::regnamespace, 'public'::regnamespace)`)) {
		fmt.Fprintln(&all, table, w.value(t, `SELECT coalesce(string_agg(r::text, E'\n' ORDER BY r::text), '') FROM `+table+` AS r`))
	}
	return all.String()
}

func (w benchWorld) measures(t *testing.T) {
	role := w.db.Role(t, "bencher", "CREATEDB") // all that it needs
	before := w.installation(t)
	w.config(t, w.db.URLFor(role))
	defer w.config(t, w.db.URL)
	r := w.run(t, append(quick, "-o", "json")...)
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `^note: measuring for about \d+s in the scratch database reconciler_bench_[0-9a-f]{16}; Ctrl-C ends it and drops that\nnote: round 1 of 1 is done\n$`, r.stderr)
	var found bench.Result
	decoder := json.NewDecoder(strings.NewReader(r.stdout))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&found))
	require.Len(t, found.Figures, 16)
	for _, f := range found.Figures {
		require.Positive(t, f.Value.Min, f.What)
		require.Positive(t, f.Other.Min, f.What)
		require.InEpsilon(t, f.Value.Median/f.Other.Median, f.Ratio.Median, .001, f.What)
	}
	require.Contains(t, []string{"on", "off"}, found.Verdict.Notify)
	require.Positive(t, found.Verdict.LatencyMS.P50)
	require.GreaterOrEqual(t, len(found.Verdict.Sentences), 4)
	require.Positive(t, found.Server.DatabaseMiB)
	require.Equal(t, before, w.installation(t))
	w.requireNothingLeft(t)
}

// digits stand for every number in what is printed.
var digits = regexp.MustCompile(`-?\d+(\.\d+)?`)

func (w benchWorld) prints(t *testing.T) {
	w.environ = []string{"RECONCILER_POLL_INTERVAL=30ms"}
	defer func() { w.environ = nil }()
	r := w.run(t, "bench", "--writers", "1", "--rounds", "1", "--length", "50ms")
	require.Zero(t, r.code, r.stderr)
	lines := strings.Split(r.stdout, "\n")
	require.Regexp(t, `^MEASURED +RATIO +VALUE +AGAINST$`, lines[0])
	plain := func(line string) string {
		return regexp.MustCompile(` +`).ReplaceAllString(digits.ReplaceAllString(line, "N"), " ")
	}
	require.Equal(t, "tracked, a process reads, N writer N (N to N) N (N to N) commits/s N, untracked", plain(lines[1]))
	require.Equal(t, "commit to call, NOTIFY on, N/s, pN N (N to N) N (N to N) ms N, bare NOTIFY", plain(lines[4]))
	require.Equal(t, "a commit alone, pN N (N to N) N (N to N) ms N, no wait for the disk", plain(lines[12]))
	require.Contains(t, r.stdout, "\nMedians of 1 round of 50ms (minimum to maximum); PostgreSQL ")
	require.Contains(t, r.stdout, "\nWith NOTIFY, expect the driver call ")
	require.Contains(t, r.stdout, "(polling every 30ms)")
	w.requireNothingLeft(t)
}

// inBackground calls the command with a context of its own, and returns what it says meanwhile.
func (w benchWorld) inBackground(args ...string) (stop context.CancelCauseFunc, stderr *output, ended <-chan int) {
	ctx, stop := context.WithCancelCause(context.Background())
	stderr = &output{}
	a := &app{stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: stderr, environ: w.environ, dir: w.dir, registry: registry()}
	codes := make(chan int, 1)
	go func() {
		defer stop(nil)
		codes <- a.execute(ctx, args)
	}()
	return stop, stderr, codes
}

func (w benchWorld) isInterrupted(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		at   func(t *testing.T, stderr *output)
	}{
		"WhileWritersWrite": {[]string{"bench", "--rounds", "1", "--length", "1m"}, func(t *testing.T, _ *output) {
			require.Eventually(t, func() bool {
				return w.value(t, `SELECT count(*)::text FROM pg_stat_activity WHERE query LIKE 'UPDATE "public"."untracked"%'`) != "0"
			}, patience, 10*time.Millisecond)
		}},
		"AfterARound": {often, func(t *testing.T, stderr *output) { stderr.await(t, "round 1 of 50 is done") }},
	} {
		t.Run(name, func(t *testing.T) {
			stop, stderr, ended := w.inBackground(test.args...)
			test.at(t, stderr)
			stop(&signalError{syscall.SIGINT})
			require.Equal(t, 130, <-ended, stderr.String())
			require.Contains(t, stderr.String(), "note: ended; the scratch database is dropped\n")
			require.NotContains(t, stderr.String(), "reconciler:")
			w.requireNothingLeft(t)
		})
	}
}

func (w benchWorld) isKilled(t *testing.T) {
	others := []string{
		"reconciler_bench_00000000ffffffff", // left by a run of another role
		"reconciler_bench_results", "reconciler_bench_00000000fffffffff", "my_reconciler_bench_0000000000000001",
		"reconciler_bench_ffffffff00000001", // held by its run, whatever database that is connected to
	}
	for _, name := range others {
		w.db.Exec(t, "CREATE DATABASE "+name)
		defer w.db.Exec(t, "DROP DATABASE "+name)
	}
	_, err := w.db.Conn(t).Exec(t.Context(), "SELECT pg_advisory_lock(('x' || 'ffffffff00000001')::bit(64)::bigint)")
	require.NoError(t, err)
	role := w.db.Role(t, "bencher", "CREATEDB")
	w.config(t, w.db.URLFor(role))
	defer w.config(t, w.db.URL)

	proc := w.launch(t, often...)
	proc.stderr.await(t, "measuring for about")
	mine := func() string {
		return w.value(t, `SELECT coalesce(string_agg(datname, ' '), '') FROM pg_database WHERE datdba = $1::text::regrole`, role)
	}
	left := mine()
	require.Regexp(t, `^reconciler_bench_[0-9a-f]{16}$`, left)
	proc.signal(t, syscall.SIGSTOP)
	r := w.run(t, quick...)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "note: another run measures in "+left+" at this moment: the figures of both are worth less\n")
	require.Contains(t, r.stderr, "note: a killed run of another role left the database reconciler_bench_00000000ffffffff, which only that role can drop\n")
	require.Contains(t, r.stderr, "note: another run measures in reconciler_bench_ffffffff00000001 at this moment: the figures of both are worth less\n")
	require.NotContains(t, r.stderr, "dropped")
	require.Equal(t, left, mine(), "its run was alive")

	proc.signal(t, syscall.SIGKILL)
	proc.code(t)
	require.Eventually(t, func() bool { // the server notices a moment later
		return w.value(t, `SELECT count(*)::text FROM pg_stat_activity WHERE application_name = 'reconciler bench'`) == "0"
	}, patience, 10*time.Millisecond)
	r = w.run(t, quick...)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "note: dropped the database "+left+", which a killed run left\n")
	require.Empty(t, mine())
	for _, name := range others {
		require.Equal(t, "1", w.value(t, "SELECT count(*)::text FROM pg_database WHERE datname = $1", name), name)
	}
}

// Without the lock another run may drop the database at any moment. It is cleaned up all the same, in another session.
func (w benchWorld) losesItsLock(t *testing.T) {
	_, stderr, ended := w.inBackground(often...)
	stderr.await(t, "round 1 of 50 is done")
	w.db.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reconciler bench'`)
	require.Equal(t, 3, <-ended, stderr.String())
	require.Contains(t, stderr.String(), "reconciler: the connection to the database was lost: ")
	w.requireNothingLeft(t)
}

func (w benchWorld) lacksRights(t *testing.T) {
	role := w.db.Role(t, "app", "")
	w.config(t, w.db.URLFor(role))
	defer w.config(t, w.db.URL)
	require.Equal(t, result{code: 3, stderr: "reconciler: role \"" + role + "\" may not create databases, and everything is measured in a scratch database\n" +
		"hint: as a superuser: ALTER ROLE " + role + " CREATEDB; (and NOCREATEDB afterwards), or give the URL of another role\n"}, w.run(t, quick...))
	w.requireNothingLeft(t)
}

func (w benchWorld) lacksConnections(t *testing.T, cluster *pgtest.Cluster) {
	w.db.Exec(t, "ALTER SYSTEM SET superuser_reserved_connections = "+w.value(t, `SELECT (current_setting('max_connections')::int - 50)::text`))
	cluster.Restart(t)
	w.db.Pool.Reset()
	r := w.run(t, "bench", "--writers", "40")
	require.Equal(t, 3, r.code)
	require.Regexp(t, `^reconciler: 40 writers need 60 connections, and of the \d+ that are free on the server 5 are left to others\n`+
		`hint: give fewer --writers, or raise max_connections\n$`, r.stderr)
	w.requireNothingLeft(t)
}

func (w benchWorld) meetsAPooler(t *testing.T) {
	w.config(t, w.db.Pooler(t, "").URL)
	defer w.config(t, w.db.URL)
	require.Equal(t, result{code: 3, stderr: "reconciler: direct_url leads through a pooler in transaction mode, which cannot keep a lock\n" +
		"hint: let direct_url (RECONCILER_DIRECT_URL) lead to the server itself\n"}, w.run(t, quick...))
}

func (w benchWorld) meetsAStandby(t *testing.T, cluster *pgtest.Cluster) {
	w.db.Exec(t, `DO $$ BEGIN EXECUTE format('COPY (SELECT) TO %L', current_setting('data_directory') || '/standby.signal'); END $$`)
	cluster.Restart(t)
	require.Equal(t, result{code: 3, stderr: "reconciler: the server is a standby: nothing can be written, and so nothing measured, there\n" +
		"hint: let direct_url lead to the primary\n"}, w.run(t, quick...))
	w.db.Pool.Reset() // its connections ended with the server
	var promoted bool
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), "SELECT pg_promote()").Scan(&promoted))
	require.True(t, promoted)
}
