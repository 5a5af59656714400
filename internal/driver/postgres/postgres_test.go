package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/postgres"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func object(key, spec string, term, revision int64) driver.Object {
	return driver.Object{
		Ref:  driver.Ref{Target: "test", Resource: "apps", Key: key, Revision: revision, Term: term},
		Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec)),
	}
}

// made opens the driver with a table that it made.
func made(t *testing.T, opts driver.Options) (*pgtest.DB, driver.Driver) {
	t.Helper()
	db := pgtest.Empty(t)
	all := driver.Options{"create": true}
	maps.Copy(all, opts)
	d := open(t, db.URL, all)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("first", `{"n": 1}`, 1, 1)))
	return db, d
}

func specOf(t *testing.T, db *pgtest.DB, key string) (spec string) {
	t.Helper()
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT coalesce((SELECT spec::text FROM reconciled_objects WHERE key = $1), '')`, key).Scan(&spec))
	return spec
}

// The hash of a string spec is made in Go from its text, and has to be what the server makes of it.
func TestStringSpecIsWhatTheServerWrites(t *testing.T) {
	t.Parallel()

	db := pgtest.Empty(t)
	var texts []string
	for r := rune(1); r < 0x3000; r++ {
		if r < 0x300 || r%97 == 0 {
			texts = append(texts, string(r)+"x"+string(r))
		}
	}
	texts = append(texts, "", "\U0001F600", "\uFFFD", "\u2028\u2029", `\"`, "</script>", strings.Repeat("\x01\n\"", 1000))
	rows, err := db.Pool.Query(t.Context(), `SELECT t, to_jsonb(t)::text, sha256(convert_to(to_jsonb(t)::text, 'UTF8')) FROM unnest($1::text[]) AS t`, texts)
	require.NoError(t, err)
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var text, want string
		var hash []byte
		require.NoError(t, rows.Scan(&text, &want, &hash))
		require.Equal(t, want, string(driver.StringSpec([]byte(text))))
		require.Equal(t, driver.Hash(hash[:16]), driver.HashSpec(driver.StringSpec([]byte(text))))
		seen++
	}
	require.NoError(t, rows.Err())
	require.Equal(t, len(texts), seen)
}

func TestARowHoldsTheObject(t *testing.T) {
	t.Parallel()

	db, d := made(t, nil)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("web", `{"image": "web:1"}`, 3, 41)))
	var row string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT concat_ws(' ', target, resource, key, spec, revision, term,
		updated_at BETWEEN now() - interval '1 minute' AND now()) FROM reconciled_objects WHERE key = 'web'`).Scan(&row))
	require.Equal(t, `test apps web {"image": "web:1"} 41 3 t`, row)
	var application string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT application_name FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE 'INSERT INTO "reconciled_objects"%'`).Scan(&application))
	require.Equal(t, "reconciler", application)
}

// I3, I10: a call that was on its way when its owner was deposed arrives late.
func TestAnOlderCallNeverOverwritesANewer(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		term, revision int64
		wins           bool
	}{
		"OlderTerm":                {1, 999, false},
		"SameTermOlderRevision":    {2, 9, false},
		"SameTermSameRevision":     {2, 10, true},
		"SameTermNewerRevision":    {2, 11, true},
		"SameTermWithoutRevision":  {2, 0, true},
		"NewerTermOlderRevision":   {3, 1, true},
		"NewerTermWithoutRevision": {3, 0, true},
		"OlderTermWithoutRevision": {1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			db, d := made(t, nil)
			text := fmt.Sprintf("term %d, revision %d: the row was written under a newer term or revision than this call's: another owner is "+
				"ahead (if the reconciler's own database was restored from a backup, set term to 0 in the target's rows)", c.term, c.revision)
			put := func() {
				db.Exec(t, `INSERT INTO reconciled_objects VALUES ('test', 'apps', 'web', '{"old": true}', 10, 2) ON CONFLICT (target, resource, key)
				DO UPDATE SET spec = excluded.spec, revision = excluded.revision, term = excluded.term`)
			}
			expect := func(o driver.Outcome) {
				t.Helper()
				if c.wins {
					require.Equal(t, driver.Done(), o)
					return
				}
				require.Equal(t, driver.VerdictBackoff, o.Verdict)
				require.EqualError(t, o.Err, text)
				require.Equal(t, `{"old": true}`, specOf(t, db, "web"))
			}
			obj := object("web", `{"new": true}`, c.term, c.revision)
			put()
			expect(d.Apply(t.Context(), obj))
			put()
			outcomes := d.(driver.BatchApplier).ApplyBatch(t.Context(), []driver.Object{object("other", `1`, 1, 1), obj, object("third", `3`, 1, 1)})
			require.Equal(t, driver.Done(), outcomes[0])
			expect(outcomes[1])
			require.Equal(t, driver.Done(), outcomes[2])
			if c.wins {
				require.Equal(t, `{"new": true}`, specOf(t, db, "web"))
			}
			put()
			expect(d.Delete(t.Context(), obj.Ref))
			if c.wins {
				require.Empty(t, specOf(t, db, "web"))
			}
			require.Equal(t, `{"n": 1}`, specOf(t, db, "first"))
		})
	}
}

// I4.
func TestABadObjectInABatchHurtsItselfOnly(t *testing.T) {
	t.Parallel()

	db, d := made(t, nil)
	db.Exec(t, `ALTER TABLE reconciled_objects ADD CONSTRAINT small CHECK (spec <> '"large"')`)
	outcomes := d.(driver.BatchApplier).ApplyBatch(t.Context(), []driver.Object{
		object("a", `1`, 1, 1), object("b", `"large"`, 1, 1), object("c", `{"cut`, 1, 1), object("nul\x00", `4`, 1, 1), object("e", `5`, 1, 1),
		object("a", `6`, 1, 2), // twice in one statement is more than ON CONFLICT takes
	})
	require.Equal(t, []driver.Verdict{
		driver.VerdictDone, driver.VerdictTerminal, driver.VerdictTerminal, driver.VerdictTerminal, driver.VerdictDone, driver.VerdictDone,
	}, verdicts(outcomes))
	require.EqualError(t, outcomes[1].Err, `new row for relation "reconciled_objects" violates check constraint "small" (SQLSTATE 23514)`)
	require.EqualError(t, outcomes[2].Err, `invalid input syntax for type json (SQLSTATE 22P02)`)
	require.EqualError(t, outcomes[3].Err, `the name "nul" cannot be stored by PostgreSQL: it holds a NUL or is not valid UTF-8`)
	require.Equal(t, `6`, specOf(t, db, "a"))
	require.Equal(t, `5`, specOf(t, db, "e"))
}

func verdicts(outcomes []driver.Outcome) []driver.Verdict {
	all := make([]driver.Verdict, len(outcomes))
	for i, o := range outcomes {
		all[i] = o.Verdict
	}
	return all
}

func TestConcurrentBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()

	_, d := made(t, nil)
	var objs []driver.Object
	for i := range 200 {
		objs = append(objs, object(fmt.Sprint(i), `1`, 1, 1))
	}
	var wg sync.WaitGroup
	results := make(chan driver.Outcome, 40*len(objs))
	for round := range 40 {
		wg.Go(func() {
			mixed := append(append([]driver.Object{}, objs[round*5:]...), objs[:round*5]...)
			for _, o := range d.(driver.BatchApplier).ApplyBatch(t.Context(), mixed) {
				results <- o
			}
		})
	}
	wg.Wait()
	close(results)
	for o := range results {
		require.Equal(t, driver.Done(), o)
	}
}

func TestManyCallsMakeTheTableOnce(t *testing.T) {
	t.Parallel()

	d := open(t, pgtest.Empty(t).URL, driver.Options{"create": true, "max_connections": 10})
	require.Equal(t, driver.Done(), d.Delete(t.Context(), object("a", `1`, 1, 1).Ref))
	var wg sync.WaitGroup
	outcomes := make([]driver.Outcome, 20)
	for i := range outcomes {
		wg.Go(func() { outcomes[i] = d.Apply(t.Context(), object(fmt.Sprint(i), `1`, 1, 1)) })
	}
	wg.Wait()
	require.Equal(t, make([]driver.Outcome, 20), outcomes)
}

// Several processes that start at once and find no table do not fill the server's log with errors of each other.
func TestF98_ProcessesThatMakeTheTableAtOnceDisturbNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	var wg sync.WaitGroup
	outcomes := make([]driver.Outcome, 20)
	for i := range outcomes {
		d := open(t, db.URL, driver.Options{"create": true})
		wg.Go(func() { outcomes[i] = d.Apply(t.Context(), object(fmt.Sprint(i), `1`, 1, 1)) })
	}
	wg.Wait()
	require.Equal(t, make([]driver.Outcome, 20), outcomes)
	require.NotContains(t, db.Log(t), "duplicate key")
	require.NotContains(t, db.Log(t), "already exists")
}

// A stranger who holds the lock that makers take keeps nobody from making the table.
func TestF98_NobodyWaitsForAStrangersLock(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	d := open(t, db.URL, driver.Options{"create": true})
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("a", `1`, 1, 1)))
	lock := db.Conn(t)
	// The same lock for the same table, which is made anew.
	_, err := lock.Exec(t.Context(), `SELECT pg_advisory_lock_shared(hashtextextended('reconciler create "reconciled_objects"', 0))`)
	require.NoError(t, err)
	db.Exec(t, `DROP TABLE reconciled_objects`)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("a", `1`, 1, 1)))
}

// A table of the user's own may hold rows that no call has written.
func TestF80_ARowWithoutASpecDiffersFromEverySpec(t *testing.T) {
	t.Parallel()
	db, d := made(t, nil)
	db.Exec(t, `ALTER TABLE reconciled_objects ALTER spec DROP NOT NULL, DROP CONSTRAINT reconciled_objects_pkey; ALTER TABLE reconciled_objects ALTER key DROP NOT NULL`)
	db.Exec(t, `CREATE UNIQUE INDEX ON reconciled_objects (target, resource, key); DELETE FROM reconciled_objects`)
	db.Exec(t, `INSERT INTO reconciled_objects VALUES ('test', 'apps', 'a', NULL, 1, 1), ('test', 'apps', 'b', '1', 1, 1), ('test', 'apps', NULL, '1', 1, 1)`)
	found := map[string][]driver.Hash{}
	for listed, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
		require.NoError(t, err)
		found[listed.Key] = listed.Hashes
	}
	require.Equal(t, map[string][]driver.Hash{"a": {driver.HashSpec(nil)}, "b": {driver.HashSpec([]byte(`1`))}}, found)
}

func TestListReadsPages(t *testing.T) {
	t.Parallel()

	for name, collation := range map[string]string{"ByBytes": `"C"`, "ByLanguage": `"und-x-icu"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			db, d := made(t, nil)
			db.Exec(t, `ALTER TABLE reconciled_objects ALTER key TYPE text COLLATE `+collation)
			db.Exec(t, `INSERT INTO reconciled_objects SELECT 'test', 'apps', k, to_jsonb(k), 1, 1
				FROM (SELECT chr(33 + n % 90) || ' ' || repeat('é', n % 7) || n AS k FROM generate_series(1, 2998) AS n UNION ALL SELECT '') AS keys`)
			db.Exec(t, `INSERT INTO reconciled_objects SELECT 'other', 'apps', n::text, '1', 1, 1 FROM generate_series(1, 10) AS n`)
			seen := map[string]bool{}
			for listed, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
				require.NoError(t, err)
				require.False(t, seen[listed.Key], "%q comes twice", listed.Key)
				seen[listed.Key] = true
				if listed.Key != "first" {
					require.Equal(t, []driver.Hash{driver.HashSpec(driver.StringSpec([]byte(listed.Key)))}, listed.Hashes)
				}
			}
			require.Len(t, seen, 3000, "three full pages, and an empty one")
		})
	}
}

// C69.
func TestNoErrorHoldsThePassword(t *testing.T) {
	t.Parallel()

	d := open(t, "postgres://user:"+password+"@127.0.0.1:1/db?sslmode=disable", nil)
	o := d.Apply(t.Context(), object("web", `1`, 1, 1))
	require.Equal(t, driver.VerdictUnreachable, o.Verdict)
	require.EqualError(t, o.Err, "failed to connect to `user=user database=db`: 127.0.0.1:1 (127.0.0.1): "+
		"dial error: dial tcp 127.0.0.1:1: connect: connection refused")
	require.EqualError(t, d.(driver.Checker).Check(t.Context()), o.Err.Error())
}

func TestACallThatIsCutShortChangesNothingLater(t *testing.T) {
	t.Parallel()

	db, d := made(t, nil)
	lock := db.Conn(t)
	_, err := lock.Exec(t.Context(), `BEGIN; SELECT FROM reconciled_objects WHERE key = 'first' FOR UPDATE`)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	outcome := make(chan driver.Outcome, 1)
	go func() { outcome <- d.Apply(ctx, object("first", `{"n": 2}`, 1, 2)) }()
	waiting := func() (n int) {
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
		return n
	}
	for waiting() == 0 {
		require.NoError(t, t.Context().Err())
	}
	cancel(errors.New("timed out after 5s"))
	o := <-outcome
	require.Equal(t, driver.VerdictBackoff, o.Verdict)
	require.EqualError(t, o.Err, "timed out after 5s")
	for waiting() > 0 { // the statement is cancelled on the server too
		require.NoError(t, t.Context().Err())
	}
	_, err = lock.Exec(t.Context(), `COMMIT`)
	require.NoError(t, err)
	require.Equal(t, `{"n": 1}`, specOf(t, db, "first"))
}

// C68: whatever a table and its columns are called, rows are written, listed and deleted there.
func TestTablesOfRandomNames(t *testing.T) {
	t.Parallel()

	db := pgtest.Empty(t)
	part := rapid.SampledFrom([]string{
		`"`, `""`, "'", `\`, "{key}", "{table}", "{", "}", "$1", "%s", ";", "--", "/*", "*/", " ", "\n", "(", ")", "é", "\u202e", "a", "Z", "have", "excluded", "select", "key",
	})
	name := rapid.Map(rapid.SliceOfN(part, 1, 6), func(parts []string) string { return strings.Join(parts, "") })
	rapid.Check(t, func(r *rapid.T) {
		names := rapid.SliceOfNDistinct(name, 8, 8, rapid.ID[string]).Draw(r, "names")
		columns := map[string]any{}
		for i, column := range []string{"target", "resource", "key", "spec", "revision", "term", "updated_at"} {
			columns[column] = names[i+1]
		}
		_, err := db.Pool.Exec(t.Context(), "DROP TABLE IF EXISTS public."+pgx.Identifier{names[0]}.Sanitize())
		require.NoError(r, err)
		d, err := postgres.Kind().Open("test", driver.Options{"url_env": "URL", "create": true, "table": names[0], "columns": columns},
			driver.Env{Getenv: func(string) string { return db.URL }})
		require.NoError(r, err)
		defer func() { require.NoError(r, d.Close(t.Context())) }()
		require.Equal(r, driver.Done(), d.Apply(t.Context(), object("a", `{"n": 1}`, 1, 1)))
		require.Equal(r, []driver.Outcome{driver.Done(), driver.Done()},
			d.(driver.BatchApplier).ApplyBatch(t.Context(), []driver.Object{object("a", `{"n": 2}`, 1, 2), object("b", `{"n": 3}`, 1, 2)}))
		require.NoError(r, d.(driver.Checker).Check(t.Context()))
		require.Equal(r, driver.Done(), d.Delete(t.Context(), object("a", "", 1, 3).Ref))
		listed := map[string]driver.Hash{}
		for l, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
			require.NoError(r, err)
			require.Len(r, l.Hashes, 1)
			listed[l.Key] = l.Hashes[0]
		}
		require.Equal(r, map[string]driver.Hash{"b": driver.HashSpec([]byte(`{"n": 3}`))}, listed)
		var rows int
		require.NoError(r, db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM public."+pgx.Identifier{names[0]}.Sanitize()).Scan(&rows))
		require.Equal(r, 1, rows)
	})
}
