package desired_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/store"
	"github.com/pgreconciler/reconciler/internal/sync"
)

// A spec that is too large is not sent, and its object says so; others are read beside it.
func TestF17_SpecThatIsTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, body text); INSERT INTO apps VALUES (1, repeat('x', 1048574)), (2, repeat('x', 1048575)), (3, repeat('x', 10000000)), (4, NULL);
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(body)')`)
	rows, err := w.resource(t, "app").Read(t.Context(), w.Pool, "eu", targetEU, []string{"1", "2", "3", "4"})
	require.NoError(t, err)
	require.Len(t, rows[0].Spec, desired.SpecMost)
	require.NoError(t, rows[0].Err)
	for i, bytes := range map[int]int{1: 1048577, 2: 10000002} {
		require.EqualError(t, rows[i].Err, fmt.Sprintf("its spec has %d bytes; the largest that is applied has 1048576", bytes))
		require.Empty(t, rows[i].Spec)
		require.False(t, rows[i].Wanted)
	}
	require.EqualError(t, rows[3].Err, "its spec is null")
}

// What an owner holds of specs is bounded in bytes: rows that a read had no room for are told apart, and what is known of them.
func TestF17_ReadReturnsAsManySpecsAsItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, body text); INSERT INTO apps SELECT i, repeat('x', 1048574) FROM generate_series(1, 18) AS i;
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(body)')`)
	keys := make([]string, 18)
	for i := range keys {
		keys[i] = fmt.Sprint(i + 1)
	}
	rows, err := w.resource(t, "app").Read(t.Context(), w.Pool, "eu", targetEU, keys)
	require.NoError(t, err)
	for i, row := range rows {
		require.True(t, row.Wanted)
		require.NoError(t, row.Err)
		require.Equal(t, i >= 4, row.Left, i)
		require.Equal(t, row.Left, row.Spec == nil, i)
	}
}

// countingDB counts the bytes of the values that PostgreSQL sends.
type countingDB struct {
	store.DBTX

	bytes int
}

func (db *countingDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := db.DBTX.Query(ctx, sql, args...)
	return countingRows{rows, db}, err
}

type countingRows struct {
	pgx.Rows

	db *countingDB
}

func (r countingRows) Next() bool {
	more := r.Rows.Next()
	for _, value := range r.RawValues() {
		r.db.bytes += len(value)
	}
	return more
}

// A read that is sent more than it may return takes as long as the line needs for all of it, each time anew. Rows that there is
// no room for are not in a record of first calls: they are not called for.
func TestF101_ReadIsSentNoMoreThanItMayReturn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, body text); INSERT INTO apps SELECT i, repeat('x', 1048574) FROM generate_series(1, 60) AS i;
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(body)')`)
	w.Exec(t, `UPDATE reconciler.targets SET owner = $2, term = 1, lease_ttl = '1 h' WHERE id = $1`, targetEU, "11111111-1111-1111-1111-111111111111")
	keys := make([]string, 60)
	for i := range keys {
		keys[i] = fmt.Sprint(i + 1)
	}
	r := w.resource(t, "app")
	by := desired.Caller{Owner: "11111111-1111-1111-1111-111111111111", Term: 1, Most: desired.ReadMost, Recorded: func(int64) {}}
	for name, read := range map[string]func(db store.DBTX) ([]desired.Row, error){
		"Read": func(db store.DBTX) ([]desired.Row, error) { return r.Read(t.Context(), db, "eu", targetEU, keys) },
		"ReadToCall": func(db store.DBTX) ([]desired.Row, error) {
			return r.ReadToCall(t.Context(), db, "eu", targetEU, keys, by)
		},
	} {
		db := &countingDB{DBTX: w.Pool}
		rows, err := read(db)
		require.NoError(t, err, name)
		require.Less(t, db.bytes, desired.ReadMost+60*500, name)
		for i, row := range rows {
			require.Equal(t, i >= 4, row.Left, "%s %d", name, i)
			require.Equal(t, row.Left || name == "Read", row.First == 0, "%s %d", name, i)
		}
	}
	seen := map[int]bool{}
	require.NoError(t, r.ReadEach(t.Context(), w.Pool, "eu", targetEU, keys, func(i int, row desired.Row) error {
		require.False(t, seen[i])
		seen[i] = true
		require.Equal(t, keys[i], row.Key)
		require.Len(t, row.Spec, desired.SpecMost)
		return nil
	}))
	require.Len(t, seen, len(keys))
}

// slowDB cancels pages of more than some rows, as statement_timeout does.
type slowDB struct {
	store.DBTX

	most, cancelled int
}

func (db *slowDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	for _, arg := range args {
		if rows, ok := arg.(int); ok && rows > db.most && strings.Contains(sql, "page AS MATERIALIZED") {
			db.cancelled++
			return nil, &pgconn.PgError{Code: "57014"}
		}
	}
	return db.DBTX.Query(ctx, sql, args...)
}

func TestF101_SyncTakesSmallerPagesOfAServerThatIsTooSlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY); INSERT INTO apps SELECT generate_series(1, 1000);
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(id)')`)
	db := &slowDB{DBTX: w.Pool, most: 300}
	found := 0
	scan := &sync.Scan{
		DB: db, Target: "eu", TargetID: targetEU,
		Found: func(context.Context, sync.Finding) error { found++; return nil },
		Page:  func(context.Context, sync.Progress) error { return nil },
	}
	progress, unread, err := scan.Run(t.Context(), []*desired.Resource{w.resource(t, "app")})
	require.NoError(t, err)
	require.Empty(t, unread)
	require.EqualValues(t, 1000, progress.Rows)
	require.Equal(t, 1000, found)
	require.Equal(t, 3, db.cancelled, "2,000, 1,000 and 500 rows; then 250 each time")
}

// Memories count, too.
func TestReadReturnsAsManyMemoriesAsItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY); INSERT INTO apps SELECT generate_series(1, 300);
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(id)')`)
	r := w.resource(t, "app")
	w.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at, memory)
		SELECT $1, $2, i, 'pending', true, true, now(), decode(repeat('ab', 65536), 'hex') FROM generate_series(1, 300) AS i`, targetEU, r.ID)
	keys := make([]string, 300)
	for i := range keys {
		keys[i] = fmt.Sprint(i + 1)
	}
	rows, err := r.Read(t.Context(), w.Pool, "eu", targetEU, keys)
	require.NoError(t, err)
	for i, row := range rows {
		require.Equal(t, i >= 64, row.Left, i)
		require.Equal(t, row.Left, row.Ledger.Memory == nil, i)
		require.NotNil(t, row.Ledger)
	}
}

// What depends_on refers to goes into an index of the ledger; what is too large for it blocks its object, and no other.
func TestF17_ColumnsThatAreTooLargeToDependOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE owners (name text PRIMARY KEY); CREATE TABLE apps (id int PRIMARY KEY, owner text);
		INSERT INTO owners VALUES ('small'), (repeat('x', 8300)); INSERT INTO apps SELECT row_number() OVER (ORDER BY length(name)), name FROM owners;
		CREATE VIEW joined AS SELECT a.id, a.owner FROM apps a JOIN owners o ON o.name = a.owner;
		SELECT reconciler.track('app', 'joined', '{id}', $$'eu'$$, spec => 'to_jsonb(id)', depends_on => '{"owners": {"name": "owner"}, "apps": {"id": "id"}}')`)
	rows, err := w.resource(t, "app").Read(t.Context(), w.Pool, "eu", targetEU, []string{"1", "2"})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	require.JSONEq(t, `{"id": 1, "owner": "small"}`, string(rows[0].Match))
	require.EqualError(t, rows[1].Err, "the columns that depends_on refers to have more than 8192 bytes")
	require.Empty(t, rows[1].Match)
	require.False(t, rows[1].Wanted)
}
