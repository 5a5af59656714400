package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// blocked lists what is blocked, with the reason.
const blocked = `SELECT string_agg(left(key, 20) || ': ' || last_error, E'\n' ORDER BY key) FROM reconciler.objects WHERE state = 'blocked'`

// C30, I4: rows that cannot become an object, each in its own way, are blocked with the reason; others flow; when a row is
// mended it is applied.
func TestSpoiledRowsAreBlocked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id text PRIMARY KEY, spec jsonb, divisor int NOT NULL DEFAULT 1)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'CASE WHEN spec IS NOT NULL THEN spec || to_jsonb(1 / divisor) END')`)
	long := strings.Repeat("k", 2500)
	w.db.Exec(t, `INSERT INTO apps VALUES ('good 1', '1'), ('null', NULL), ('good 2', '2')`)
	w.db.Exec(t, `INSERT INTO apps VALUES ($1, '3')`, long)
	eu := newPlace()
	w.start(named("eu", eu))
	want := map[string]string{"app/good 1": "[1, 1]", "app/good 2": "[2, 1]"}
	eu.eventually(t, want)
	w.db.Exec(t, `INSERT INTO apps VALUES ('divided', '4', 0), ('good 3', '5', 1)`)
	want["app/good 3"] = "[5, 1]"
	eu.eventually(t, want)
	reasons := []string{
		"divided: its row cannot be read: division by zero",
		"null: its spec is null",
	}
	w.eventually("two are blocked", func() bool { return w.text(blocked) == strings.Join(reasons, "\n") })
	w.seen("eu")

	// A sync changes nothing about it, and calls for none of them.
	_, before, _ := eu.snapshot()
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.eventually("the sync is complete", func() bool {
		return w.text(`SELECT state FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`) == "complete"
	})
	w.eventually("two are blocked", func() bool { return w.text(blocked) == strings.Join(reasons, "\n") })
	_, after, _ := eu.snapshot()
	for _, c := range after[len(before):] {
		require.Contains(t, want, c.id())
	}

	w.db.Exec(t, `UPDATE apps SET spec = '6' WHERE id = 'null'`)
	w.db.Exec(t, `UPDATE apps SET divisor = 2 WHERE id = 'divided'`)
	w.db.Exec(t, `DELETE FROM apps WHERE id = $1`, long)
	want["app/null"], want["app/divided"] = "[6, 1]", "[4, 0]"
	eu.eventually(t, want)
	w.eventually("nothing is named any more", func() bool { return len(w.lines(found)) == 0 })
	w.converged()
}

// A view that gives a key twice: nobody can say which row is meant.
func TestKeyThatIsNotUniqueIsBlocked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int, image text)`)
	w.db.Exec(t, `CREATE VIEW running AS SELECT id, image FROM apps`)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'a'), (2, 'b')`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'running', '{id}', '''eu''', spec => 'to_jsonb(image)', depends_on => '{"apps": {"id": "id"}}')`)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, map[string]string{"app/1": `"a"`, "app/2": `"b"`})
	w.wait()
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'another'), (3, 'c')`)
	eu.eventually(t, map[string]string{"app/1": `"a"`, "app/2": `"b"`, "app/3": `"c"`})
	w.eventually("it is blocked", func() bool {
		return w.text(blocked) == `1: key "1" is not unique: more than one running row has it`
	})
	w.db.Exec(t, `DELETE FROM apps WHERE image = 'a'`)
	eu.eventually(t, map[string]string{"app/1": `"another"`, "app/2": `"b"`, "app/3": `"c"`})
	w.converged()
}

// C30: a spec that the target refuses for good is not tried again until it changes, or a person says so.
func TestRefusedSpecIsTriedOnce(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 2)
	eu := newPlace()
	refuse := func(_ context.Context, c call) driver.Outcome {
		if c.Spec == `"bad"` {
			return driver.Terminal(errors.New("no such image"))
		}
		return driver.Done()
	}
	eu.set(refuse)
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.db.Exec(t, `UPDATE apps SET image = 'bad' WHERE id = 1`)
	w.eventually("it is blocked", func() bool { return w.text(blocked) == "1: no such image" })
	tried := func() (n int) {
		_, calls, _ := eu.snapshot()
		for _, c := range calls {
			if c.Spec == `"bad"` {
				n++
			}
		}
		return n
	}
	// Events that change nothing, restarts of its sync: nobody tries it again.
	w.db.Exec(t, `INSERT INTO reconciler.outbox (resource_id, target, key) SELECT id, 'eu', '1' FROM reconciler.resources`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 2`)
	want["app/2"] = `"v2"`
	eu.eventually(t, want)
	w.seen("eu")
	require.Equal(t, 1, tried())
	w.db.Exec(t, `SELECT reconciler.retry('eu', 'app', '1')`)
	w.eventually("it is tried once more", func() bool { return tried() == 2 })
	w.eventually("it is blocked", func() bool { return w.text(blocked) == "1: no such image" })
	w.db.Exec(t, `UPDATE apps SET image = 'good' WHERE id = 1`)
	want["app/1"] = `"good"`
	eu.eventually(t, want)
	w.converged()
	require.Equal(t, 2, tried())
}

// I4: a definition that cannot be read for a while (a table stands where its view should, which the leader does not mend by
// itself) stops its own objects only, and nothing of them is lost: not what was blocked before, and not what was changed
// meanwhile.
func TestBrokenDefinitionStopsItsObjectsOnly(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 30)
	w.db.Exec(t, `CREATE TABLE others (id int PRIMARY KEY)`)
	w.db.Exec(t, `SELECT reconciler.track('other', 'others', '{id}', '''eu''')`)
	eu := newPlace()
	eu.set(func(_ context.Context, c call) driver.Outcome {
		if c.Spec == `"bad"` {
			return driver.Terminal(errors.New("no such image"))
		}
		return driver.Done()
	})
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.db.Exec(t, `UPDATE apps SET image = 'bad' WHERE id = 1`)
	w.eventually("it is blocked", func() bool { return w.text(blocked) == "1: no such image" })
	w.seen("eu")

	definition := w.text(`SELECT pg_get_viewdef('reconciler.desired_app'::regclass)`)
	w.db.Exec(t, `DROP VIEW reconciler.desired_app; CREATE TABLE reconciler.desired_app ()`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`) // the one that is blocked too; and more than the guard lets pass if they were deletes
	w.db.Exec(t, `INSERT INTO others VALUES (1)`)
	want["other/1"] = `{"id": 1}`
	eu.eventually(t, want)
	w.eventually("its objects were looked at", func() bool { return len(w.logged("rows_unreadable")) > 0 })
	w.db.Exec(t, fmt.Sprintf(`DROP TABLE reconciler.desired_app; CREATE VIEW reconciler.desired_app AS %s`, definition))
	for i := range 30 {
		want[fmt.Sprintf("app/%d", i+1)] = `"v2"`
	}
	eu.eventually(t, want)
	w.converged()
}
