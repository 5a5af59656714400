package desired_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
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
		require.Equal(t, rows[0].Hash, row.Hash)
		require.Equal(t, i >= 16, row.Left, i)
		require.Equal(t, row.Left, row.Spec == nil, i)
	}
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
		require.Equal(t, i >= 255, row.Left, i)
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
