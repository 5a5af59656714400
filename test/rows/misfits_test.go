package rows_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// found lists what doctor says about objects.
const found = `SELECT finding FROM reconciler.doctor() WHERE check_name = 'objects' AND NOT ok`

// random returns text that no compression shortens.
func random(bytes int) string {
	text := make([]byte, bytes)
	for i := range text {
		text[i] = "abcdefghijklmnopqrstuvwxyz0123456789"[rand.IntN(36)]
	}
	return string(text)
}

// A row that names a target which no config can hold, or whose key no index can, stops nothing: it is named with the reason,
// never registered, and forgotten when it is corrected.
func TestF16_TargetThatNoConfigCanHoldStopsNothing(t *testing.T) {
	t.Parallel()
	w, eu := servertest.New(t), servertest.NewPlace()
	w.DB.Exec(t, `CREATE TABLE apps (id text PRIMARY KEY, region text); CREATE TABLE bases (id text PRIMARY KEY, region text); CREATE VIEW v AS SELECT id, region FROM bases;
		SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => '1'), reconciler.track('base', 'v', '{id}', 'region', spec => '1', depends_on => '{"bases": {"id": "id"}}')`)
	w.Start(servertest.Named("eu", eu))
	w.DB.Exec(t, `INSERT INTO apps VALUES ('0', 'eu'), ('space', 'eu west'), ('empty', '')`)
	long, key := random(2800), strings.Repeat("k", 2500)
	w.DB.Exec(t, `INSERT INTO apps VALUES ('long', $1)`, long)
	w.DB.Exec(t, `INSERT INTO apps VALUES ($1, 'eu')`, key)
	w.DB.Exec(t, `INSERT INTO bases VALUES ('long', $1)`, long)
	w.DB.Exec(t, `INSERT INTO bases VALUES ('0', 'eu')`)
	want := map[string]string{"app/0": "1", "base/0": "1"}
	eu.Eventually(t, want)
	named := []string{
		`a running row of app with key 'empty' can be no object: no config can hold a target named ''`,
		`a running row of app with key 'long' can be no object: no config can hold a target named '` + long[:100] + `... (sha256 `,
		`a running row of app with key 'space' can be no object: no config can hold a target named 'eu west'`,
		`a running row of base with key 'long' can be no object: no config can hold a target named '` + long[:100] + `... (sha256 `,
		`a running row of app with key '` + key[:100] + `... (sha256 `,
	}
	w.Eventually("all are named", func() bool {
		all := strings.Join(w.Lines(found), "\n")
		for _, text := range named {
			if !strings.Contains(all, text) {
				return false
			}
		}
		return true
	})
	require.Len(t, w.Lines(found), len(named))
	require.Contains(t, strings.Join(w.Lines(found), "\n"), `its key has 2500 bytes; the longest that can be kept has 2000`)
	require.Equal(t, []string{"eu"}, w.Lines(`SELECT name FROM reconciler.targets`))
	require.Len(t, w.Lines(`SELECT reason FROM reconciler.wait('1s') WHERE state <> 'syncing'`), len(named))
	require.Equal(t, []string{"0"}, w.Lines(`SELECT count(*)::text FROM reconciler.outbox WHERE octet_length(target) > 200 OR octet_length(key) > 2000`))
	// The leader goes on, and a sync is complete.
	w.DB.Exec(t, `INSERT INTO apps VALUES ('1', 'eu'); INSERT INTO bases VALUES ('1', 'eu'); SELECT reconciler.resync('eu')`)
	want["app/1"], want["base/1"] = "1", "1"
	eu.Eventually(t, want)
	w.Eventually("the sync is complete", func() bool {
		return w.Text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	w.DB.Exec(t, `UPDATE apps SET region = 'eu' WHERE id = 'long'; UPDATE apps SET id = 'short' WHERE length(id) > 2000; DELETE FROM apps WHERE id IN ('space', 'empty'); UPDATE bases SET region = 'eu'`)
	want["app/long"], want["app/short"], want["base/long"] = "1", "1", "1"
	eu.Eventually(t, want)
	w.Eventually("nothing is named any more", func() bool { return len(w.Lines(found)) == 0 })
	w.Wait()
}

// A row whose key is null is no object: it is named, and keeps no other from being applied and synced.
func TestF26_NullKeyBlocksItselfOnly(t *testing.T) {
	t.Parallel()
	w, eu := servertest.New(t), servertest.NewPlace()
	w.DB.Exec(t, `CREATE TABLE bases (id int PRIMARY KEY, name text, part int); INSERT INTO bases VALUES (1, 'a', 1), (2, NULL, 2), (3, 'c', NULL);
		CREATE VIEW v AS SELECT name, id FROM bases; CREATE VIEW parts AS SELECT name, part, id FROM bases;
		CREATE TABLE apps (id int UNIQUE NOT NULL, n int); INSERT INTO apps VALUES (1, 1);
		SELECT reconciler.track('v', 'v', '{name}', '''eu''', spec => '1', depends_on => '{"bases": {"id": "id"}}'), reconciler.track('part', 'parts', '{name,part}', '''eu''', spec => '1', depends_on => '{"bases": {"id": "id"}}'),
			reconciler.track('app', 'apps', '{id}', '''eu''', spec => '1')`)
	w.Start(servertest.Named("eu", eu))
	want := map[string]string{"v/a": "1", "v/c": "1", "part/a/1": "1", "app/1": "1"}
	eu.Eventually(t, want)
	w.DB.Exec(t, `ALTER TABLE apps ALTER COLUMN id DROP NOT NULL; INSERT INTO apps VALUES (NULL, 1), (2, 1); INSERT INTO bases VALUES (4, NULL, NULL), (5, 'e', 5)`)
	want["app/2"], want["v/e"], want["part/e/5"] = "1", "1", "1"
	eu.Eventually(t, want)
	text := func(resource string) string {
		return `a running row of ` + resource + ` with key NULL can be no object: its key is null`
	}
	w.Eventually("the rows are named", func() bool {
		all := w.Lines(`SELECT DISTINCT finding FROM (` + found + `) AS f`)
		return strings.Join(all, "\n") == text("app")+"\n"+text("part")+"\n"+text("v")
	})
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Eventually("every sync is complete", func() bool {
		return w.Text(`SELECT count(*)::text FROM reconciler.sync_runs WHERE state <> 'complete'`) == "0"
	})
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.sync_runs WHERE error IS NOT NULL`))
	w.DB.Exec(t, `DELETE FROM apps WHERE id IS NULL; UPDATE bases SET name = 'n' || id, part = id WHERE name IS NULL; DELETE FROM bases WHERE part IS NULL`)
	delete(want, "v/c")
	want["v/n2"], want["v/n4"], want["part/n2/2"], want["part/n4/4"] = "1", "1", "1", "1"
	eu.Eventually(t, want)
	w.Eventually("nothing is named any more", func() bool { return len(w.Lines(found)) == 0 })
	w.Wait()
}

// A table that a transaction has locked while the leader looks for rows that can be no object is looked at again.
func TestRowsOfALockedTableThatAreNoObjectsAreNamed(t *testing.T) {
	t.Parallel()
	w, want := servertest.HoldingFleet(t, 1)
	w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL); INSERT INTO others VALUES (1, 'eu west');
		SELECT reconciler.track('y', 'others', '{id}', 'region')`)
	person := w.Begin()
	w.In(person, `LOCK TABLE others`)
	given := make(chan error, 1)
	go func() {
		_, err := person.Exec(context.Background(), lookWaits+`; `+lookGivenUp)
		given <- err
	}()
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	require.NoError(t, <-given)
	w.In(person, `COMMIT`)
	eu.Eventually(t, want)
	w.Settled("a running row of y with key '1' can be no object: no config can hold a target named 'eu west'", found)
	w.DB.Exec(t, `DELETE FROM others`)
	w.Settled("", found)
	w.Wait()
}
