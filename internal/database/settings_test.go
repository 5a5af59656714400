package database

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// wrong is a value that each pinned setting must not have.
var wrong = map[string]string{
	"TimeZone": "Asia/Tokyo", "DateStyle": "German, DMY", "IntervalStyle": "sql_standard", "extra_float_digits": "-10", "bytea_output": "escape",
	"lc_monetary": "POSIX", "lc_numeric": "POSIX", "lc_time": "POSIX", "quote_all_identifiers": "on", "xmlbinary": "hex", "row_security": "on",
	"client_encoding": "LATIN1", "client_min_messages": "error", "search_path": "evil, pg_catalog", "standard_conforming_strings": "off",
	"transform_null_equals": "on", "array_nulls": "off", "xmloption": "document", "check_function_bodies": "off",
	"default_transaction_isolation": "serializable", "default_transaction_read_only": "on", "default_transaction_deferrable": "on",
	"synchronous_commit": "off", "statement_timeout": "1ms", "lock_timeout": "1ms", "idle_in_transaction_session_timeout": "1ms", "idle_session_timeout": "1s",
	"jit": "on", "plan_cache_mode": "force_generic_plan", "enable_indexscan": "off", "enable_nestloop": "off", "enable_sort": "off",
	"enable_seqscan": "off", "enable_bitmapscan": "off",
}

// turnWrong gives a role every setting with a wrong value.
func turnWrong(t *testing.T, db *pgtest.DB, role string, names []string) {
	t.Helper()
	for _, name := range names {
		require.Contains(t, wrong, name, "say what is wrong for it")
		value := "'" + wrong[name] + "'"
		if name == "DateStyle" || name == "search_path" {
			value = wrong[name]
		}
		db.Exec(t, fmt.Sprintf(`ALTER ROLE %s IN DATABASE %s SET %s = %s`, role, db.Name, pgx.Identifier{name}.Sanitize(), value))
	}
}

// Whatever the role or the database sets: each session has what it needs.
func TestEverySettingIsPinned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := db.Role(t, "hostile", "SUPERUSER")
	want := sessionSettings(map[string]string{"enable_seqscan": "on"})
	turnWrong(t, db, role, slices.Sorted(maps.Keys(want)))
	conn, err := Connect(t.Context(), db.URLFor(role), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	pool, err := NewPool(t.Context(), db.URLFor(role), Options{Settings: map[string]string{"synchronous_commit": "off"}})
	require.NoError(t, err)
	defer pool.Close()
	for name, value := range want {
		var have string
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&have), name)
		if strings.HasSuffix(name, "_timeout") {
			limit, err := time.ParseDuration(value)
			require.NoError(t, err, name)
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT (1000 * extract(epoch FROM $1::interval))::int || 'ms'`, have).Scan(&have))
			value = fmt.Sprintf("%dms", limit.Milliseconds())
		}
		require.Equal(t, value, have, name)
	}
	var have string
	require.NoError(t, pool.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&have))
	require.Equal(t, "off", have) // what a pool asks for goes before
}

// Through a pooler the settings that decide what rows give are pinned for each statement, and what can be pinned nowhere is refused by name.
func TestSettingsThroughAPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := db.Role(t, "hostile", "SUPERUSER")
	turnWrong(t, db, role, slices.Sorted(maps.Keys(valueSettings)))
	pool, err := NewPool(t.Context(), db.URLFor(role), Options{Simple: true, MaxConns: 1})
	require.NoError(t, err)
	defer pool.Close()
	for name, want := range valueSettings {
		var have string
		require.NoError(t, Rows(pool).QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&have))
		require.Equal(t, want, have, name)
		if !slices.Contains(pooledSettings, name) {
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&have))
			require.NotEqual(t, want, have, "%s stays in a session that the pooler lends to others", name)
		}
	}
	turnWrong(t, db, role, slices.Sorted(maps.Keys(unpinnable)))
	_, err = NewPool(t.Context(), db.URLFor(role), Options{Simple: true})
	require.ErrorContains(t, err, `sessions through the pooler cannot be used: default_transaction_isolation is "serializable" there and must be "read committed"; `+
		`default_transaction_read_only is "on" there and must be "off"; standard_conforming_strings is "off" there and must be "on"; `+
		`ALTER ROLE ... SET it for the role of reconciler, or let database_url lead to the server itself`)
}

// Capture functions evaluate expressions under what their rows are read with.
func TestCaptureAndReadersHaveTheSameSettings(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var clauses string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT reconciler.pinned_settings()`).Scan(&clauses))
	db.Exec(t, `CREATE FUNCTION f() RETURNS void LANGUAGE sql `+clauses+` AS ''`)
	var have []string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT array_agg(c ORDER BY c) FROM pg_proc p, unnest(p.proconfig) AS c WHERE p.proname = 'f' AND c NOT LIKE 'search_path=%'`).Scan(&have))
	var want []string
	for name, value := range valueSettings {
		want = append(want, name+"="+value)
	}
	require.ElementsMatch(t, want, have)
}
