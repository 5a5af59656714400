package faults_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// clientDeath is a step at which a client dies.
type clientDeath struct {
	name  string
	step  string // regular expression for the steps of clientProcess
	visit int    // which of the steps that match
	live  bool   // it comes after the first snapshot, with a change of row 1 and the delete of row 2
}

var clientDeaths = []clientDeath{
	{"InsideASnapshot", `^taken .*"upsert"`, 3, false},
	{"BeforeTheEndOfASnapshot", `^read .*"end_of_snapshot"`, 1, false},
	{"AfterTheEndOfASnapshot", `^taken .*"end_of_snapshot"`, 1, false},
	{"BeforeALiveUpsert", `^read .*"id": "1@[^"]*", "version": 2`, 1, true},
	{"AfterALiveUpsert", `^taken .*"id": "1@[^"]*", "version": 2`, 1, true},
	{"BeforeALiveDelete", `^read .*"delete".*"key":"2@[^"]*"`, 1, true},
	{"AfterALiveDelete", `^taken .*"delete".*"key":"2@[^"]*"`, 1, true},
	{"BeforeAHandler", `^apply 3@`, 1, false},
	{"BeforeAHandlerDeletes", `^remove 2@`, 1, true},
	{"AfterTheFarSideWasWritten", `^applied 3@`, 1, false},
	{"AfterTheFarSideWasChanged", `^applied 1@`, 2, true},
	{"AfterTheFarSideWasDeleted", `^removed 2@`, 1, true},
	{"BeforeAReport", `^report .*"applied"`, 1, false},
	{"BeforeAReportOfADelete", `^report .*"key":"2@[^"]*"[^\n]*"absent"`, 1, true},
	{"AfterAReport", `^reported .*"applied"`, 1, false},
	{"AfterAReportOfADelete", `^reported .*"key":"2@[^"]*"[^\n]*"absent"`, 1, true},
	{"AtTheFirstWriteToTheStore", `^store`, 1, false},
	{"AtAWriteToTheStoreAfterADelete", `^store after removed 2@`, 1, true},
}

// clientKinds are the clients: without a store and with one, without a list of the far side and with one.
var clientKinds = []clientPlan{{}, {Existing: true}, {Store: true}, {Store: true, Existing: true}}

// Wherever a client dies, and whatever happens to the rows while it is away: with the next one, the far side becomes equal to the rows,
// and the ledger has what was acknowledged, and nothing else. I1, I7.
func TestClientDiesAtAnyStep(t *testing.T) {
	t.Parallel()
	type death struct {
		clientDeath
		clientPlan
	}
	var all []death
	var targets []string
	for i, d := range clientDeaths {
		kinds := clientKinds
		if strings.HasPrefix(d.step, "^store") {
			kinds = kinds[2:]
		}
		for k, kind := range kinds {
			// Outside of the long tier, each client dies where only the server knows of a delete, and one of them at each other step.
			if !pgtest.Long && k != i%len(kinds) && d.name != "AfterTheFarSideWasDeleted" {
				continue
			}
			kind.Target, kind.Step, kind.Visit = fmt.Sprintf("edge%d", len(targets)), d.step, d.visit
			all, targets = append(all, death{d, kind}), append(targets, kind.Target)
		}
	}
	w := newCrashWorld(t, pgtest.New(t))
	w.exec(`CREATE TABLE apps (id text PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1);
SELECT reconciler.track('app', 'apps', '{id}', 'region', ignore => '{region}')`)
	w.follow(targets...)
	server := w.start("", 0, "run").streams()
	for _, d := range all {
		t.Run(fmt.Sprintf("%s/Store=%v,Existing=%v", d.name, d.Store, d.Existing), func(t *testing.T) {
			t.Parallel()
			c := &clientWorld{crashWorld: *w, client: d.clientPlan}
			c.t, c.client.Server, c.client.Dir = t, server, t.TempDir()
			c.dies(d.live)
			c.recovers()
		})
	}
}

// clientWorld is a target of a crashWorld, whose far side is a directory of a client.
type clientWorld struct {
	crashWorld

	client clientPlan
}

// change executes statements about rows of the target, the keys of which are like 1@edge0.
func (c *clientWorld) change(sql string) {
	c.t.Helper()
	c.exec(strings.NewReplacer("@", "@"+c.client.Target, "$1", "'"+c.client.Target+"'").Replace(sql))
}

func (c *clientWorld) start() *exec.Cmd {
	c.t.Helper()
	text, err := json.Marshal(c.client)
	require.NoError(c.t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), clientVariable+"="+string(text)), c.t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(c.t, cmd.Start())
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// dies runs a client until it has died at its step.
func (c *clientWorld) dies(live bool) {
	c.t.Helper()
	require.NoError(c.t, os.Mkdir(filepath.Join(c.client.Dir, farSide), 0o700))
	if c.client.Existing {
		require.NoError(c.t, os.WriteFile(filepath.Join(c.client.Dir, farSide, "99"), []byte("an orphan"), 0o600))
	}
	c.change(`INSERT INTO apps (id, region) SELECT i || '@', $1 FROM generate_series(1, 8) AS i`)
	cmd := c.start()
	if live {
		c.applied()
		c.change(`UPDATE apps SET version = 2 WHERE id = '1@'; DELETE FROM apps WHERE id = '2@'`)
	}
	late := time.AfterFunc(crashPatience, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	_ = cmd.Wait() // ProcessState tells how it ended
	end := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(c.t, end.Signaled() && end.Signal() == syscall.SIGKILL, "it ended in another way: %v", cmd.ProcessState)
}

// recovers changes rows while no client runs, starts one that does not die, and looks at everything.
func (c *clientWorld) recovers() {
	c.t.Helper()
	c.change(`UPDATE apps SET version = version + 1 WHERE id = '3@'; DELETE FROM apps WHERE id IN ('4@', '5@')`)
	c.change(`INSERT INTO apps (id, region, version) VALUES ('5@', $1, 7), ('9@', $1, 1)`)
	c.client.Step = ""
	cmd := c.start()
	c.applied()
	want := c.want()
	have := c.farSide()
	delete(have, "99") // no row and no publication has ever named it: wait() does not wait for it
	require.Equal(c.t, want, have, "VIOLATION: wait() has returned, and the far side differs from the rows")
	c.eventually("the far side has no orphan", func() error {
		if have := c.farSide(); have["99"] != "" {
			return fmt.Errorf("it has %v", have)
		}
		return nil
	})
	c.ledgerIsTrue()
	require.NoFileExists(c.t, filepath.Join(c.client.Dir, clientOverlap), "VIOLATION: two handlers ran for one key at once")
	require.NoError(c.t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(c.t, cmd.Wait())
}

// ledgerIsTrue checks that the ledger has what the rows want, and nothing else.
func (c *clientWorld) ledgerIsTrue() {
	c.t.Helper()
	ledger := fmt.Sprintf(`SELECT coalesce(string_agg(key || ' ' || state, ',' ORDER BY key), '') FROM reconciler.objects WHERE target = '%s'`, c.client.Target)
	applied := fmt.Sprintf(`SELECT string_agg(id || ' applied', ',' ORDER BY id) FROM apps WHERE region = '%s'`, c.client.Target)
	require.Equal(c.t, c.text(applied), c.text(ledger), "VIOLATION: the ledger differs from the rows")
}

// applied waits until everything of the target is acknowledged.
func (c *clientWorld) applied() {
	c.t.Helper()
	left := c.text(fmt.Sprintf(`SELECT coalesce(string_agg(format('%%s %%s: %%s', key, state, reason), '; '), '') FROM reconciler.wait('%s', '%s')`, crashPatience, c.client.Target))
	require.Empty(c.t, left)
}

func (c *clientWorld) want() map[string]string {
	c.t.Helper()
	rows, err := c.db.Pool.Query(c.t.Context(), `SELECT id, format('{"id": "%s", "version": %s}', id, version) FROM apps WHERE region = $1`, c.client.Target)
	require.NoError(c.t, err)
	want := map[string]string{}
	var key, spec string
	_, err = pgx.ForEachRow(rows, []any{&key, &spec}, func() error {
		want[key] = spec
		return nil
	})
	require.NoError(c.t, err)
	return want
}

func (c *clientWorld) farSide() map[string]string {
	c.t.Helper()
	have := map[string]string{}
	entries, err := os.ReadDir(filepath.Join(c.client.Dir, farSide))
	require.NoError(c.t, err)
	for _, entry := range entries {
		text, err := os.ReadFile(filepath.Join(c.client.Dir, farSide, entry.Name()))
		require.NoError(c.t, err)
		have[entry.Name()] = string(text)
	}
	return have
}
