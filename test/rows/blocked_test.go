package rows_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// blocked lists what is blocked, with the reason.
const blocked = `SELECT string_agg(left(key, 20) || ': ' || last_error, E'\n' ORDER BY key) FROM reconciler.objects WHERE state = 'blocked'`

// C30, I4: rows that cannot become an object, each in its own way, are blocked with the reason; others flow; when a row is
// mended it is applied.
func TestSpoiledRowsAreBlocked(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id text PRIMARY KEY, spec jsonb, divisor int NOT NULL DEFAULT 1)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'CASE WHEN spec IS NOT NULL THEN spec || to_jsonb(1 / divisor) END')`)
	long := strings.Repeat("k", 2500)
	w.DB.Exec(t, `INSERT INTO apps VALUES ('good 1', '1'), ('null', NULL), ('good 2', '2')`)
	w.DB.Exec(t, `INSERT INTO apps VALUES ($1, '3')`, long)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	want := map[string]string{"app/good 1": "[1, 1]", "app/good 2": "[2, 1]"}
	eu.Eventually(t, want)
	w.DB.Exec(t, `INSERT INTO apps VALUES ('divided', '4', 0), ('good 3', '5', 1)`)
	want["app/good 3"] = "[5, 1]"
	eu.Eventually(t, want)
	reasons := []string{
		"divided: its row cannot be read: division by zero",
		"null: its spec is null",
	}
	w.Eventually("two are blocked", func() bool { return w.Text(blocked) == strings.Join(reasons, "\n") })
	w.Seen("eu")

	// A sync changes nothing about it, and calls for none of them.
	_, before, _ := eu.Snapshot()
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Eventually("the sync is complete", func() bool {
		return w.Text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	w.Eventually("two are blocked", func() bool { return w.Text(blocked) == strings.Join(reasons, "\n") })
	_, after, _ := eu.Snapshot()
	for _, c := range after[len(before):] {
		require.Contains(t, want, c.ID())
	}

	w.DB.Exec(t, `UPDATE apps SET spec = '6' WHERE id = 'null'`)
	w.DB.Exec(t, `UPDATE apps SET divisor = 2 WHERE id = 'divided'`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id = $1`, long)
	want["app/null"], want["app/divided"] = "[6, 1]", "[4, 0]"
	eu.Eventually(t, want)
	w.Eventually("nothing is named any more", func() bool { return len(w.Lines(found)) == 0 })
	w.Converged()
}

// A view that gives a key twice: nobody can say which row is meant.
func TestKeyThatIsNotUniqueIsBlocked(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int, image text)`)
	w.DB.Exec(t, `CREATE VIEW running AS SELECT id, image FROM apps`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'a'), (2, 'b')`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'running', '{id}', '''eu''', spec => 'to_jsonb(image)', depends_on => '{"apps": {"id": "id"}}')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/1": `"a"`, "app/2": `"b"`})
	w.Wait()
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'another'), (3, 'c')`)
	eu.Eventually(t, map[string]string{"app/1": `"a"`, "app/2": `"b"`, "app/3": `"c"`})
	w.Eventually("it is blocked", func() bool {
		return w.Text(blocked) == `1: key "1" is not unique: more than one running row has it`
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE image = 'a'`)
	eu.Eventually(t, map[string]string{"app/1": `"another"`, "app/2": `"b"`, "app/3": `"c"`})
	w.Converged()
}

// C30: a spec that the target refuses for good is not tried again until it changes, or a person says so.
func TestRefusedSpecIsTriedOnce(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 2)
	eu := servertest.NewPlace()
	refuse := func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Spec == `"bad"` {
			return driver.Terminal(errors.New("no such image"))
		}
		return driver.Done()
	}
	eu.Set(refuse)
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.DB.Exec(t, `UPDATE apps SET image = 'bad' WHERE id = 1`)
	w.Eventually("it is blocked", func() bool { return w.Text(blocked) == "1: no such image" })
	tried := func() (n int) {
		_, calls, _ := eu.Snapshot()
		for _, c := range calls {
			if c.Spec == `"bad"` {
				n++
			}
		}
		return n
	}
	// Events that change nothing, restarts of its sync: nobody tries it again.
	w.DB.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT id, 'eu', '1' FROM reconciler.resources`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 2`)
	want["app/2"] = `"v2"`
	eu.Eventually(t, want)
	w.Seen("eu")
	require.Equal(t, 1, tried())
	w.DB.Exec(t, `SELECT reconciler.retry('eu', 'app', '1')`)
	w.Eventually("it is tried once more", func() bool { return tried() == 2 })
	w.Eventually("it is blocked", func() bool { return w.Text(blocked) == "1: no such image" })
	w.DB.Exec(t, `UPDATE apps SET image = 'good' WHERE id = 1`)
	want["app/1"] = `"good"`
	eu.Eventually(t, want)
	w.Converged()
	require.Equal(t, 2, tried())
}

// I4: a definition that cannot be read for a while (a table stands where its view should, which the leader does not mend by
// itself) stops its own objects only, and nothing of them is lost: not what was blocked before, and not what was changed
// meanwhile.
func TestBrokenDefinitionStopsItsObjectsOnly(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 30)
	w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY)`)
	w.DB.Exec(t, `SELECT reconciler.track('other', 'others', '{id}', '''eu''')`)
	eu := servertest.NewPlace()
	eu.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
		if c.Spec == `"bad"` {
			return driver.Terminal(errors.New("no such image"))
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.DB.Exec(t, `UPDATE apps SET image = 'bad' WHERE id = 1`)
	w.Eventually("it is blocked", func() bool { return w.Text(blocked) == "1: no such image" })
	w.Seen("eu")

	definition := w.Text(`SELECT pg_get_viewdef('reconciler.desired_app'::regclass)`)
	w.DB.Exec(t, `DROP VIEW reconciler.desired_app; CREATE TABLE reconciler.desired_app ()`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`) // the one that is blocked too; and more than the guard lets pass if they were deletes
	w.DB.Exec(t, `INSERT INTO others VALUES (1)`)
	want["other/1"] = `{"id": 1}`
	eu.Eventually(t, want)
	w.Eventually("its objects were looked at", func() bool { return len(w.Logged("rows_unreadable")) > 0 })
	w.DB.Exec(t, fmt.Sprintf(`DROP TABLE reconciler.desired_app; CREATE VIEW reconciler.desired_app AS %s`, definition))
	for i := range 30 {
		want[fmt.Sprintf("app/%d", i+1)] = `"v2"`
	}
	eu.Eventually(t, want)
	w.Converged()
}
