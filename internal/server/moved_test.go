package server_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// sequence is one of our sequences that a column owns.
type sequence struct{ name, relation, column string }

// ownedSequences returns every sequence of the schema that a column owns.
func ownedSequences(w *servertest.World) (all []sequence) {
	for _, line := range w.Lines(`SELECT format('%s %s %s', d.objid::regclass, d.refobjid::regclass, a.attname) FROM pg_depend d
		JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' AND c.relnamespace = 'reconciler'::regnamespace
		JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid WHERE d.deptype IN ('a', 'i') ORDER BY 1`) {
		var s sequence
		_, err := fmt.Sscan(line, &s.name, &s.relation, &s.column)
		require.NoError(w.T, err)
		all = append(all, s)
	}
	return all
}

// behind returns the sequences whose next value is no higher than what their column holds.
func behind(w *servertest.World) (names []string) {
	for _, s := range ownedSequences(w) {
		if w.Text(fmt.Sprintf(`SELECT (max(%s) >= (SELECT last_value + CASE WHEN is_called THEN 1 ELSE 0 END FROM %s))::text FROM %s`, s.column, s.name, s.relation)) == "true" {
			names = append(names, s.relation)
		}
	}
	return names
}

// movedWorld is a database that was moved by copying its rows: each sequence is at its start, and no process has run there since.
type movedWorld struct {
	*servertest.World

	start func(more ...servertest.Target)
}

func newMovedWorld(t *testing.T) *movedWorld {
	t.Helper()
	return moveWorld(t, func(w *servertest.World, lose func()) {
		dump := w.DB.Dump(t)
		lose()
		w.DB.Move(t, dump, "--clean")
	})
}

// moveWorld has move move a database. lose commits changes, and has processes apply them.
func moveWorld(t *testing.T, move func(w *servertest.World, lose func())) *movedWorld {
	t.Helper()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL DEFAULT 'v1');
		CREATE TABLE regions (name text PRIMARY KEY, size int NOT NULL); CREATE VIEW sized AS SELECT a.id, a.region, r.size FROM apps a JOIN regions r ON r.name = a.region;
		INSERT INTO apps SELECT i, (ARRAY['a', 'b', 'c', 'eu'])[i % 4 + 1] FROM generate_series(1, 40) AS i; INSERT INTO regions SELECT DISTINCT region, 1 FROM apps`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)'),
		reconciler.track('sized', 'sized', '{id}', 'region', spec => 'to_jsonb(size)', depends_on => '{"apps": {"id": "id"}, "regions": {"name": "region"}}')`)
	quick := func(c *config.Target) { c.Timeout = time.Second } // for which the next owner waits: a call may still be under way
	targets := []servertest.Target{streaming(t, quick)}
	for _, name := range []string{"a", "b", "c"} {
		targets = append(targets, servertest.Named(name, servertest.Listing{Place: servertest.NewPlace()}, quick))
	}
	p := w.Start(targets...)
	w.Wait()
	w.DB.Exec(t, `SELECT reconciler.pause('a'), reconciler.ask_health('a', '1 hour')`)
	apply(w, `'one that waits'`, `UPDATE apps SET image = 'v2'; UPDATE regions SET size = 2`)
	w.Settled("running", `SELECT state FROM reconciler.applies`)
	// More syncs than are kept.
	w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, state, finished_at) SELECT t.id, 'interval', 'complete', clock_timestamp()
		FROM reconciler.targets t, generate_series(1, 150)`)
	p.Stop(t)
	move(w, func() {
		w.DB.Exec(t, `SELECT reconciler.resume('a'); UPDATE apps SET image = 'lost'; INSERT INTO apps SELECT i, 'a', 'lost' FROM generate_series(101, 103) AS i`)
		q := w.Start(targets...)
		w.Wait()
		q.Stop(t)
	})
	require.Subset(t, behind(w), []string{"reconciler.applies", "reconciler.apply_log", "reconciler.operations", "reconciler.resources", "reconciler.dependencies",
		"reconciler.sync_runs", "reconciler.targets", "reconciler.goose_db_version"})
	return &movedWorld{World: w, start: func(more ...servertest.Target) { w.Start(append(targets, more...)...) }}
}

// putBack has sequences at their start again, as a command has set them forward for good.
func (w *movedWorld) putBack() {
	for _, s := range ownedSequences(w.World) {
		w.DB.Exec(w.T, fmt.Sprintf(`SELECT setval('%s', 1, false)`, s.name))
	}
}

// has waits until every target has what its rows ask for, and nothing else.
func (w *movedWorld) has() {
	w.T.Helper()
	w.DB.Exec(w.T, `SELECT reconciler.resume('a')`)
	w.Wait()
	for name, place := range w.Places {
		require.Equal(w.T, w.Wanted(name), place.Have(), name)
	}
}

// I8: between the move and the first process there, users write, and people call what they like.
func TestF128_ADatabaseWhoseSequencesStayedBehindTakesWritesAndCommands(t *testing.T) {
	t.Parallel()
	w := newMovedWorld(t)
	for _, name := range slices.Sorted(maps.Keys(openCommands)) {
		w.putBack()
		tx := w.Begin()
		w.In(tx, openCommands[name])
		require.NoError(t, tx.Rollback(t.Context()))
	}
	w.putBack()
	tx := w.Begin()
	w.In(tx, `SELECT reconciler.track('again', 'apps', '{id}', 'region'), reconciler.track('joined', 'sized', '{id}', 'region', depends_on => '{"apps": {"id": "id"}}')`)
	require.NoError(t, tx.Rollback(t.Context()))

	w.DB.Exec(t, `SELECT reconciler.set_applies('app', true)`)
	w.putBack()
	for n := range 3 {
		w.DB.Exec(t, `UPDATE apps SET image = $1`, fmt.Sprint(n))
	}
	require.Equal(t, "3", w.Text(`SELECT count(*) FROM reconciler.applies WHERE automatic`))
	w.start()
	w.has()
}

// I12: a move that left sequences behind is noticed: every target is applied again and pruned, also one that the config of before did
// not have, and versions of streams go on upwards.
func TestF128_ADatabaseWhoseSequencesStayedBehindIsNoticed(t *testing.T) {
	t.Parallel()
	w := newMovedWorld(t)
	versions := `SELECT %s(version)::text FROM reconciler.published`
	before := w.Text(fmt.Sprintf(versions, "max"))
	w.DB.Exec(t, `INSERT INTO apps VALUES (50, 'd', 'v1')`)
	w.start(servertest.Named("d", servertest.NewPlace()))
	w.has()
	require.Empty(t, behind(w.World))
	require.Equal(t, "true", w.Text(`SELECT bool_and(pg_sequence_last_value(c.oid) > extract(epoch FROM clock_timestamp() - interval '1 hour') * 1000000)::text
		FROM pg_class c WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relkind = 'S'
		AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype IN ('a', 'i'))`), "those that no column owns begin at the time of day")
	w.Settled("a b c d eu", `SELECT string_agg(DISTINCT t.name, ' ') FROM reconciler.sync_runs s JOIN reconciler.targets t ON t.id = s.target_id
		WHERE s.state = 'complete' AND s.reason IN ('restored', 'first')`)
	w.Settled("", `SELECT coalesce(string_agg(concat_ws(' ', loop, target, error), '; '), '') FROM reconciler.failing_loops`)

	// Rollouts go on: what is newer has higher numbers.
	w.DB.Exec(t, `SELECT reconciler.set_applies('app', true, strategy => 'rolling')`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v3'`)
	w.Settled("completed", `SELECT state FROM reconciler.applies ORDER BY id DESC LIMIT 1`)
	w.Wait()
	require.Equal(t, "true", w.Text(`SELECT ((`+fmt.Sprintf(versions, "min")+`)::bigint > $1::bigint)::text`, before))
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.tasks k WHERE k.state = 'superseded'`))
}

// The same with logical replication itself, of all tables, to a database that has the schema.
func TestF128_ADatabaseThatLogicalReplicationMovedGoesOn(t *testing.T) {
	t.Parallel()
	moved := pgtest.Empty(t) // it goes after what must hold in the end was looked at
	w := moveWorld(t, func(w *servertest.World, _ func()) {
		old := w.DB
		old.Programs(t, fmt.Sprintf("pg_dump -s %s | psql -q -o /dev/null -d %s", old.Name, moved.Name))
		old.Exec(t, `CREATE PUBLICATION everything FOR ALL TABLES`)
		old.Exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, moved.Name)
		port := w.Text(`SELECT current_setting('port')`)
		w.DB = moved
		// The server connects to itself.
		moved.Exec(t, fmt.Sprintf(`CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=%s user=postgres dbname=%s' PUBLICATION everything
			WITH (create_slot = false, slot_name = '%s')`, port, old.Name, moved.Name))
		old.Exec(t, `UPDATE apps SET image = 'v3' WHERE id = 4; INSERT INTO apps VALUES (60, 'b', 'v1')`)
		w.Eventually("everything is copied", func() bool {
			return w.Text(`SELECT bool_and(srsubstate = 'r')::text FROM pg_subscription_rel`) == "true" &&
				w.Text(`SELECT (count(*) = 41 AND bool_or(image = 'v3'))::text FROM apps`) == "true"
		})
		moved.Exec(t, `DROP SUBSCRIPTION s`)
	})
	w.DB.Exec(t, `SELECT reconciler.set_applies('app', true); SELECT reconciler.resync('*')`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v4' WHERE id = 8`)
	w.start()
	w.has()
	require.Empty(t, behind(w.World))
}
