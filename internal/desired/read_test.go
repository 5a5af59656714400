package desired_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// read returns one object of target eu.
func (w *world) read(t *testing.T, r *desired.Resource, key string) desired.Row {
	t.Helper()
	rows, err := r.Read(t.Context(), w.Pool, "eu", targetEU, []string{key})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, key, rows[0].Key)
	return rows[0]
}

func TestReadSaysWhatARowAsksFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text, on_ boolean, image text); SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_', 'to_jsonb(image)');
		INSERT INTO apps VALUES (1, 'eu', true, 'a:1'), (2, 'us', true, 'a:1'), (3, NULL, true, 'a:1'), (4, 'eu', false, 'a:1'), (5, 'eu', NULL, 'a:1'), (6, 'eu', true, NULL)`)
	app := w.resource(t, "app")
	wanted := func(key string) desired.Row {
		return desired.Row{Key: key, Wanted: true, Spec: []byte(`"a:1"`), Hash: driver.HashSpec([]byte(`"a:1"`))}
	}
	rows, err := app.Read(t.Context(), w.Pool, "eu", targetEU, []string{"3", "1", "2", "4", "5", "7", "not a number", "01", "1"})
	require.NoError(t, err)
	require.Equal(t, []desired.Row{wanted("3"), wanted("1"), {Key: "2"}, {Key: "4"}, {Key: "5"}, {Key: "7"}, {Key: "not a number"}, {Key: "01"}, wanted("1")}, rows)
	require.EqualError(t, w.read(t, app, "6").Err, "its spec is null")
	require.False(t, w.read(t, app, "6").Wanted)
	rows, err = app.Read(t.Context(), w.Pool, "eu", targetEU, nil)
	require.NoError(t, err)
	require.Empty(t, rows)
	targets, err := app.Targets(t.Context(), w.Pool, 10)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"eu", "us"}, targets)
}

// What the ledger says comes with the row, and without it: an object whose row is gone, of another key's form, or of a
// resource that was untracked.
func TestReadBringsTheLedgersEntry(t *testing.T) {
	t.Parallel()
	entry := `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash, attempts, last_error, approved, next_attempt_at)
		SELECT 1, r.id, k, 'failing', true, true, 7, 5, substr(sha256('x'), 1, 16), 3, 'no', true, clock_timestamp() + interval '1 hour' FROM reconciler.resources r, unnest(ARRAY['1/a', '9/gone', 'x/not a number', 'of another form']) AS k`
	w := newWorld(t, `CREATE TABLE pairs (a int, b text, PRIMARY KEY (a, b)); SELECT reconciler.track('pair', 'pairs', '{a,b}', '''eu'''); INSERT INTO pairs VALUES (1, 'a'), (2, 'b')`, entry)
	pair := w.resource(t, "pair")
	check := func(r *desired.Resource, key string, wanted bool) {
		t.Helper()
		row := w.read(t, r, key)
		require.Equal(t, wanted, row.Wanted, key)
		require.NoError(t, row.Err, key)
		require.NotNil(t, row.Ledger, key)
		require.InDelta(t, 3600, *row.Ledger.DueIn, 60)
		applied, reason, due := int64(5), "no", row.Ledger.DueIn
		require.Equal(t, desired.Entry{
			State: desired.Failing, Wanted: true, Present: true, DesiredRevision: 7, AppliedRevision: &applied, AppliedHash: row.Ledger.AppliedHash,
			Attempts: 3, LastError: &reason, Approved: true, DueIn: due,
		}, *row.Ledger)
		require.Len(t, row.Ledger.AppliedHash, 16)
	}
	check(pair, "1/a", true)
	for _, key := range []string{"9/gone", "x/not a number", "of another form"} {
		check(pair, key, false)
	}
	require.Nil(t, w.read(t, pair, "2/b").Ledger)
	require.Nil(t, w.read(t, pair, "also of another form").Ledger)
	missing, err := pair.Missing(t.Context(), w.Pool, "eu", []string{"1/a", "9/gone", "x/not a number", "of another form", "2/b"})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"9/gone", "x/not a number", "of another form"}, missing)

	w.Exec(t, `SELECT reconciler.untrack('pair', 'delete')`)
	gone := w.resource(t, "pair")
	require.True(t, gone.Removed)
	for _, key := range []string{"1/a", "2/b", "nothing"} {
		require.False(t, w.read(t, gone, key).Wanted, "nothing is wanted of a resource that is being deleted")
	}
	require.NotNil(t, w.read(t, gone, "1/a").Ledger)
	page, err := gone.Page(t.Context(), w.Pool, "eu", targetEU, nil, 10, true)
	require.NoError(t, err)
	require.Equal(t, desired.Page{}, page)
	missing, err = gone.Missing(t.Context(), w.Pool, "eu", []string{"1/a"})
	require.NoError(t, err)
	require.Equal(t, []string{"1/a"}, missing)
}

// I4, I5: a row that cannot be read spoils no other, and is not gone.
func TestReadOfRowsThatCannotBeEvaluated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE jobs (id int PRIMARY KEY, labels jsonb); SELECT reconciler.track('job', 'jobs', '{id}', '''eu''', '(labels->>''n'')::int > 0');
		INSERT INTO jobs SELECT n, jsonb_build_object('n', CASE WHEN n % 3 = 0 THEN 'x' ELSE '1' END) FROM generate_series(1, 30) AS n`)
	job := w.resource(t, "job")
	keys := w.lines(t, `SELECT n::text FROM generate_series(1, 35) AS n`)
	rows, err := job.Read(t.Context(), w.Pool, "eu", targetEU, keys)
	require.NoError(t, err)
	for n, row := range rows {
		require.Equal(t, keys[n], row.Key)
		if id := n + 1; id <= 30 && id%3 == 0 {
			require.EqualError(t, row.Err, `its row cannot be read: invalid input syntax for type integer: "x"`)
			require.False(t, row.Wanted)
		} else {
			require.NoError(t, row.Err)
			wanted := id <= 30
			require.Equal(t, wanted, row.Wanted)
		}
	}
	missing, err := job.Missing(t.Context(), w.Pool, "eu", keys)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"31", "32", "33", "34", "35"}, missing)
}

// A view may have two rows of one key, which no index forbids.
func TestReadOfAKeyThatIsNotUnique(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, name text, on_ boolean); CREATE VIEW named AS SELECT name, id, on_ FROM apps; SELECT reconciler.track('named', 'named', '{name}', '''eu''', 'on_', depends_on => '{}');
		INSERT INTO apps VALUES (1, 'a', true), (2, 'a', false), (3, 'b', true), (4, 'b', true), (5, 'b', true), (6, 'c', true)`)
	named := w.resource(t, "named")
	rows, err := named.Read(t.Context(), w.Pool, "eu", targetEU, []string{"a", "b", "c"})
	require.NoError(t, err)
	require.True(t, rows[0].Wanted && rows[0].Err == nil, "only one of them runs")
	require.EqualError(t, rows[1].Err, `key "b" is not unique: more than one running row has it`)
	require.False(t, rows[1].Wanted)
	require.True(t, rows[2].Wanted)
}

// A definition that does not work any more is no fault of the rows: nothing may be concluded from it.
func TestReadOfABrokenDefinition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY); SELECT reconciler.track('app', 'apps', '{id}', '''eu'''); INSERT INTO apps VALUES (1)`)
	app := w.resource(t, "app")
	w.Exec(t, `DROP TABLE apps CASCADE`)
	_, err := app.Read(t.Context(), w.Pool, "eu", targetEU, []string{"1"})
	require.EqualError(t, err, `read rows of resource app: ERROR: relation "reconciler.desired_app" does not exist (SQLSTATE 42P01)`)
	_, err = app.Page(t.Context(), w.Pool, "eu", targetEU, nil, 10, false)
	require.EqualError(t, err, `read a page of resource app: ERROR: relation "reconciler.desired_app" does not exist (SQLSTATE 42P01)`)
	_, err = app.Missing(t.Context(), w.Pool, "eu", []string{"1"})
	require.EqualError(t, err, `look for rows of resource app: ERROR: relation "reconciler.desired_app" does not exist (SQLSTATE 42P01)`)
}

func TestCatalogKnowsWhatIsTracked(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); CREATE VIEW v AS SELECT id, region FROM apps`)
	catalog := &desired.Catalog{}
	reload := func(statement string, changed bool) {
		t.Helper()
		w.Exec(t, statement)
		got, err := catalog.Reload(t.Context(), w.Pool)
		require.NoError(t, err)
		require.Equal(t, changed, got, statement)
	}
	reload(`SELECT 1`, false)
	reload(`SELECT reconciler.track('app', 'apps', '{id}', 'region')`, true)
	first, ok := catalog.ByID(1)
	require.True(t, ok)
	require.False(t, first.Joined())
	reload(`SELECT reconciler.track('app', 'apps', '{id}', 'region')`, false)
	same, _ := catalog.ByName("app")
	require.Same(t, first, same)
	require.False(t, catalog.HasDependencies())
	reload(`SELECT reconciler.track('v', 'v', '{id}', 'region', depends_on => '{"apps": {"id": "id"}}')`, true)
	require.True(t, catalog.HasDependencies())
	joined, _ := catalog.ByName("v")
	require.True(t, joined.Joined())
	require.Len(t, catalog.All(), 2)
	reload(`SELECT reconciler.track('app', 'apps', '{id}', 'lower(region)')`, true)
	// Whether rows may be for every target decides about the queries.
	reload(`SELECT reconciler.track('app', 'apps', '{id}', 'region')`, true)
	reload(`ALTER TABLE apps ALTER region SET NOT NULL`, true)
	reload(`SELECT reconciler.untrack('app')`, true)
	_, ok = catalog.ByName("app")
	require.False(t, ok)
	_, ok = catalog.ByID(1)
	require.False(t, ok)
}

// While an apply is not open, the objects that it has changed are not to be touched; if these cannot be told, none is.
func TestReadSaysWhatAnApplyMayHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, image text); SELECT reconciler.track('app', 'apps', '{id}', '''eu''');
		CREATE TABLE sites (id int PRIMARY KEY); CREATE TABLE owners (site int PRIMARY KEY); CREATE VIEW wide AS SELECT s.id FROM sites s JOIN owners o ON o.site = s.id;
		SELECT reconciler.track('site', 'wide', '{id}', '''eu''', depends_on => '{"owners": {"site": "id"}, "sites": {"id": "id"}}');
		INSERT INTO apps SELECT n, 'a:1' FROM generate_series(1, 5) AS n; INSERT INTO sites VALUES (1); INSERT INTO owners VALUES (1)`)
	app, site := w.resource(t, "app"), w.resource(t, "site")
	unopened := func() (keys []string) {
		t.Helper()
		for _, r := range []*desired.Resource{app, site} {
			rows, err := r.Read(t.Context(), w.Pool, "eu", targetEU, []string{"1", "2", "3"})
			require.NoError(t, err)
			for _, row := range rows {
				if row.Unopened {
					keys = append(keys, r.Name+"/"+row.Key)
				}
			}
		}
		return keys
	}
	open := func() { w.Exec(t, `UPDATE reconciler.applies SET opened_at = now()`) }
	begin := func(arguments, change string) {
		w.Exec(t, `BEGIN; SELECT reconciler.begin_apply(`+arguments+`); `+change+`; COMMIT`)
	}
	w.Exec(t, `UPDATE apps SET image = 'a:2' WHERE id = 3`)
	require.Empty(t, unopened())
	begin(`'one'`, `UPDATE apps SET image = 'a:2' WHERE id = 1`)
	begin(`'two'`, `DELETE FROM apps WHERE id = 2; INSERT INTO apps VALUES (6, 'a:1')`)
	require.Equal(t, []string{"app/1", "app/2"}, unopened())
	open()
	require.Empty(t, unopened())
	begin(`'at once', strategy => 'parallel'`, `UPDATE apps SET image = 'a:3'`)
	require.Empty(t, unopened())
	begin(`'whole resource'`, `TRUNCATE apps`)
	require.Equal(t, []string{"app/1", "app/2", "app/3"}, unopened())
	open()
	begin(`'not traced to objects yet'`, `UPDATE owners SET site = 2`)
	require.Equal(t, []string{"site/1", "site/2", "site/3"}, unopened())
	open()
	begin(`'large'`, `INSERT INTO apps SELECT n, 'a:1' FROM generate_series(1001, 1999) AS n`)
	require.Empty(t, unopened())
	begin(`'and more'`, `INSERT INTO apps SELECT n, 'a:1' FROM generate_series(2001, 2002) AS n`)
	require.Equal(t, []string{"app/1", "app/2", "app/3"}, unopened())
	begin(`'another one'`, `UPDATE owners SET site = 3`)
	require.Equal(t, []string{"app/1", "app/2", "app/3", "site/1", "site/2", "site/3"}, unopened())
}

// An owner's read records what it is about to call for the first time, and nothing else.
func TestReadToCallRecordsWhatTheLedgerDoesNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id bigint PRIMARY KEY, region text NOT NULL, on_ boolean NOT NULL, n int)`,
		`SELECT reconciler.track('app', 'apps', '{id}', 'region', 'on_', 'jsonb_build_object(''n'', 1 / n)')`,
		`UPDATE reconciler.targets SET owner = '11111111-1111-1111-1111-111111111111', term = 3, lease_ttl = '1 h' WHERE id = 1`,
		`INSERT INTO apps VALUES (1, 'eu', true, 1), (2, 'eu', false, 1), (3, 'us', true, 1), (4, 'eu', true, 1), (5, 'eu', true, 0), (6, 'eu', true, 1), (7, 'eu', true, 1)`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by, next_attempt_at) VALUES
			(1, 1, '4', 'held', true, false, 'pause', NULL), (1, 1, '6', 'failing', true, true, NULL, '2100-01-01')`)
	app := w.resource(t, "app")
	var recorded []int64
	by := desired.Caller{Owner: "11111111-1111-1111-1111-111111111111", Term: 3, Flush: true, Recorded: func(number int64) { recorded = append(recorded, number) }}
	read := func(by desired.Caller) ([]desired.Row, error) {
		return app.ReadToCall(t.Context(), w.Pool, "eu", targetEU, []string{"1", "2", "3", "4", "5", "6", "none"}, by)
	}
	const records = `SELECT format('%s of %s: %s', resource_id, term, keys) FROM reconciler.first_calls ORDER BY id`
	const ledger = `SELECT key || ' ' || state || ' ' || wanted || ' ' || present || ' ' || coalesce(next_attempt_at < clock_timestamp() + interval '31 s', false) FROM reconciler.ledger ORDER BY key`

	_, err := read(desired.Caller{Owner: by.Owner, Term: 2, Recorded: by.Recorded})
	require.True(t, database.IsFenced(err), err)
	require.Empty(t, w.lines(t, records))

	rows, err := read(by)
	require.NoError(t, err)
	require.Equal(t, []string{"1 of 3: {1}", "1 of 3: {4}"}, w.lines(t, records), "the row that cannot be evaluated has the keys read apart")
	firsts := map[string]int64{}
	for _, row := range rows {
		if row.First != 0 {
			firsts[row.Key] = row.First
		}
	}
	require.Equal(t, map[string]int64{"1": recorded[0], "4": recorded[1]}, firsts)
	require.Equal(t, []string{"4 held true false false", "6 failing true true false"}, w.lines(t, ledger))

	w.Exec(t, `SELECT reconciler.take_in_calls(1)`)
	require.Equal(t, []string{"1 pending true true true", "4 pending true true true", "6 failing true true false"}, w.lines(t, ledger))
	require.Empty(t, w.lines(t, records))
	rows, err = read(by)
	require.NoError(t, err)
	for _, row := range rows {
		require.Zero(t, row.First, "it is known: %s", row.Key)
	}
	_, err = app.Read(t.Context(), w.Pool, "eu", targetEU, []string{"7"})
	require.NoError(t, err)
	require.Empty(t, w.lines(t, records), "a read that is not for calls records nothing")
}

// The next owner of a target takes in what former ones have called for. That leaves no ledger row of what is no object, or of no
// resource.
func TestFirstCallsAreTakenIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id bigint PRIMARY KEY, region text NOT NULL)`, `SELECT reconciler.track('app', 'apps', '{id}', 'region')`,
		`INSERT INTO reconciler.first_calls (target_id, term, resource_id, keys) VALUES (1, 3, 1, '{a,b,b}'), (1, 2, 1, '{a,c}'), (1, 3, 99, '{d}'), (2, 7, 1, '{f}')`)
	w.Exec(t, `SELECT reconciler.take_in_calls(1)`)
	require.Equal(t, []string{"1: a,c"}, w.lines(t, `SELECT format('%s: %s', target_id, string_agg(key, ',' ORDER BY key)) FROM reconciler.ledger GROUP BY target_id ORDER BY 1`))
	require.Equal(t, []string{"2 of 7: {f}"}, w.lines(t, `SELECT format('%s of %s: %s', target_id, term, keys) FROM reconciler.first_calls ORDER BY id`))
}

// What is recorded for a first call outlives a crash of the server by itself where no event may tell of it.
func TestFirstCallsThatNoEventTellsOfAreFlushed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id bigint PRIMARY KEY, region text NOT NULL)`, `SELECT reconciler.track('app', 'apps', '{id}', 'region')`,
		`UPDATE reconciler.targets SET owner = '11111111-1111-1111-1111-111111111111', lease_ttl = '1 h' WHERE id = 1`, `INSERT INTO apps SELECT n, 'eu' FROM generate_series(1, 3) AS n`,
		`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at) VALUES (1, 1, '2', 'pending', true, false, now()), (1, 1, '3', 'pending', true, true, now())`)
	app := w.resource(t, "app")
	for name, c := range map[string]struct {
		key   string
		flush bool
		want  string
	}{
		"AnEventTells":        {"1", false, "off"}, // whatever the session has: nobody waits for a disk
		"NoEventTells":        {"1", true, "on"},
		"TheCursorMayBePast":  {"2", false, "on"},
		"NothingIsRecorded":   {"3", true, "local"},
		"ThereIsNothingToTry": {"4", true, "local"},
	} {
		tx, err := w.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), `SET LOCAL synchronous_commit = local`)
		require.NoError(t, err)
		_, err = app.ReadToCall(t.Context(), tx, "eu", targetEU, []string{c.key}, desired.Caller{
			Owner: "11111111-1111-1111-1111-111111111111", Flush: c.flush, Recorded: func(int64) {},
		})
		require.NoError(t, err)
		have := ""
		require.NoError(t, tx.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&have))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, c.want, have, name)
	}
}
