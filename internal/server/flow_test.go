package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChangesReachTheirTarget(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text, on_ boolean NOT NULL DEFAULT true)`)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'a', true), (2, 'us', 'b', true), (3, 'eu', 'c', false)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'on_', spec => 'to_jsonb(image)')`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	eu.eventually(t, map[string]string{"app/1": `"a"`})
	us.eventually(t, map[string]string{"app/2": `"b"`})

	w.db.Exec(t, `UPDATE apps SET image = 'a2' WHERE id = 1`)
	eu.eventually(t, map[string]string{"app/1": `"a2"`})

	w.db.Exec(t, `UPDATE apps SET region = 'us' WHERE id = 1`)
	eu.eventually(t, map[string]string{})
	us.eventually(t, map[string]string{"app/1": `"a2"`, "app/2": `"b"`})

	w.db.Exec(t, `UPDATE apps SET on_ = true WHERE id = 3`)
	eu.eventually(t, map[string]string{"app/3": `"c"`})
	w.db.Exec(t, `DELETE FROM apps WHERE id = 3`)
	eu.eventually(t, map[string]string{})
	w.wait()
}

// A batch of several pages, of which each has little or nothing for a target: nothing of it is left out, and its deletes, too,
// are counted over the whole batch.
func TestFewOfManyPages(t *testing.T) {
	t.Parallel()
	const many, few = 12_000, 12
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	want := map[string]string{}
	for i := range few {
		want[fmt.Sprintf("app/%d", (i+1)*1000)] = `"v1"`
	}

	w.db.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT i, CASE WHEN i %% 1000 = 0 THEN 'us' ELSE 'eu' END, 'v1' FROM generate_series(1, %d) AS i`, many))
	us.eventually(t, want)
	w.wait()
	require.Len(t, eu.have(), many-few)

	w.db.Exec(t, `DELETE FROM apps WHERE region = 'us' OR id <= 900`)
	w.settled("12 held guard", `SELECT concat_ws(' ', count(*), state, held_by) FROM reconciler.objects WHERE target = 'us' GROUP BY state, held_by`)
	require.Equal(t, want, us.have())
	w.db.Exec(t, `SELECT reconciler.approve('us')`)
	us.eventually(t, map[string]string{})
}

// An object that many pages of a batch bring is looked at once: everything in the batch was committed before.
func TestWhatABatchBringsAgainIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	const objects, changes = 600, 20 // more than two pages
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, version int NOT NULL DEFAULT 0)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(version)')`)
	w.db.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu' FROM generate_series(1, %d) AS i`, objects))
	eu := newPlace()
	w.start(named("eu", eu))
	w.wait()
	_, before, _ := eu.snapshot()
	unchanged := w.series("unchanged_total")

	w.db.Exec(t, "BEGIN; "+strings.Repeat("UPDATE apps SET version = version + 1; ", changes)+"COMMIT")
	w.wait()
	have, after, _ := eu.snapshot()
	require.Equal(t, `20`, have["app/1"])
	require.Len(t, after, len(before)+objects)
	require.Equal(t, unchanged, w.series("unchanged_total"), "looked at, and found as it should be")
}
