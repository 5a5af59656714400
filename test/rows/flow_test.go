package rows_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

func TestChangesReachTheirTarget(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text, on_ boolean NOT NULL DEFAULT true)`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'a', true), (2, 'us', 'b', true), (3, 'eu', 'c', false)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'on_', spec => 'to_jsonb(image)')`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu), servertest.Named("us", us))
	eu.Eventually(t, map[string]string{"app/1": `"a"`})
	us.Eventually(t, map[string]string{"app/2": `"b"`})

	w.DB.Exec(t, `UPDATE apps SET image = 'a2' WHERE id = 1`)
	eu.Eventually(t, map[string]string{"app/1": `"a2"`})

	w.DB.Exec(t, `UPDATE apps SET region = 'us' WHERE id = 1`)
	eu.Eventually(t, map[string]string{})
	us.Eventually(t, map[string]string{"app/1": `"a2"`, "app/2": `"b"`})

	w.DB.Exec(t, `UPDATE apps SET on_ = true WHERE id = 3`)
	eu.Eventually(t, map[string]string{"app/3": `"c"`})
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 3`)
	eu.Eventually(t, map[string]string{})
	w.Wait()
}

// A batch of several pages, of which each has little or nothing for a target: nothing of it is left out, and its deletes, too,
// are counted over the whole batch.
func TestFewOfManyPages(t *testing.T) {
	t.Parallel()
	const many, few = 12_000, 12
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu), servertest.Named("us", us))
	want := map[string]string{}
	for i := range few {
		want[fmt.Sprintf("app/%d", (i+1)*1000)] = `"v1"`
	}

	w.DB.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT i, CASE WHEN i %% 1000 = 0 THEN 'us' ELSE 'eu' END, 'v1' FROM generate_series(1, %d) AS i`, many))
	us.Eventually(t, want)
	w.Wait()
	require.Len(t, eu.Have(), many-few)

	w.DB.Exec(t, `DELETE FROM apps WHERE region = 'us' OR id <= 900`)
	w.Settled("12 held guard", `SELECT concat_ws(' ', count(*), state, held_by) FROM reconciler.objects WHERE target = 'us' GROUP BY state, held_by`)
	require.Equal(t, want, us.Have())
	w.DB.Exec(t, `SELECT reconciler.approve('us')`)
	us.Eventually(t, map[string]string{})
}

// An object that many pages of a batch bring is looked at once: everything in the batch was committed before.
func TestWhatABatchBringsAgainIsLookedAtOnce(t *testing.T) {
	t.Parallel()
	const objects, changes = 600, 20 // more than two pages
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, version int NOT NULL DEFAULT 0)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(version)')`)
	w.DB.Exec(t, fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu' FROM generate_series(1, %d) AS i`, objects))
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	w.Wait()
	_, before, _ := eu.Snapshot()
	unchanged := w.Series("unchanged_total")

	w.DB.Exec(t, "BEGIN; "+strings.Repeat("UPDATE apps SET version = version + 1; ", changes)+"COMMIT")
	w.Wait()
	have, after, _ := eu.Snapshot()
	require.Equal(t, `20`, have["app/1"])
	require.Len(t, after, len(before)+objects)
	require.Equal(t, unchanged, w.Series("unchanged_total"), "looked at, and found as it should be")
}
