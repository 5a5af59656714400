package database

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// valueSettings decide what an expression gives and how a value prints: what specs, keys and targets are made of. The
// capture functions have the same (reconciler.pinned_settings). With row security off a query that it would hide rows from fails:
// rows that are only hidden would be taken for deleted.
var valueSettings = map[string]string{
	"TimeZone":              "UTC",
	"DateStyle":             "ISO, MDY",
	"IntervalStyle":         "iso_8601",
	"extra_float_digits":    "1",
	"bytea_output":          "hex",
	"lc_monetary":           "C",
	"lc_numeric":            "C",
	"lc_time":               "C",
	"quote_all_identifiers": "off",
	"xmlbinary":             "base64",
	"row_security":          "off",
}

// settings pins, on top of those, what decides what a statement means, what its commit promises and how long it may take,
// whatever the role or the database would have it be.
var settings = map[string]string{
	"client_encoding":                "UTF8",
	"client_min_messages":            "notice",
	"search_path":                    "pg_catalog, pg_temp",
	"standard_conforming_strings":    "on",
	"transform_null_equals":          "off",
	"array_nulls":                    "on",
	"xmloption":                      "content",
	"check_function_bodies":          "on",
	"default_transaction_isolation":  "read committed",
	"default_transaction_read_only":  "off",
	"default_transaction_deferrable": "off",
	// What is told to others (a revision, a lease, an order) is never lost again.
	"synchronous_commit":                  "on",
	"statement_timeout":                   fmt.Sprintf("%dms", statementTimeout.Milliseconds()),
	"lock_timeout":                        "10s",
	"idle_in_transaction_session_timeout": fmt.Sprintf("%dms", idleInTransactionTimeout.Milliseconds()),
	// A role's own would end pooled connections between two uses.
	"idle_session_timeout": "0",
	// Our statements take milliseconds; compiling one on the strength of a wrong estimate takes tens of them. And they are
	// written for plans that walk indexes row by row.
	"jit":               "off",
	"plan_cache_mode":   "auto",
	"enable_indexscan":  "on",
	"enable_nestloop":   "on",
	"enable_sort":       "on",
	"enable_seqscan":    "on",
	"enable_bitmapscan": "on",
}

// pooledSettings are those that a pooler in transaction mode keeps for each client; it refuses others.
var pooledSettings = []string{"TimeZone", "DateStyle", "client_encoding"}

// sessionSettings returns the settings of a session of its own.
func sessionSettings(further map[string]string) map[string]string {
	all := maps.Clone(settings)
	maps.Copy(all, valueSettings)
	maps.Copy(all, further)
	return all
}

// pinSQL pins what decides what users' rows give, for the rest of a transaction: a pooler does not keep it.
var pinSQL = func() string {
	calls := []string{fmt.Sprintf("pg_catalog.set_config('lock_timeout', '%dms', true)", rowsLock.Milliseconds()), "pg_catalog.set_config('jit', 'off', true)"}
	for _, name := range slices.Sorted(maps.Keys(valueSettings)) {
		calls = append(calls, fmt.Sprintf("pg_catalog.set_config('%s', '%s', true)", name, valueSettings[name]))
	}
	return "SELECT " + strings.Join(calls, ", ")
}()

// unpinnable are settings that can be pinned neither for a transaction that a pooler gives us nor for the session that
// it lends, and that nothing of ours works with but these values.
var unpinnable = map[string]string{
	"default_transaction_isolation": "read committed",
	"default_transaction_read_only": "off",
	"standard_conforming_strings":   "on",
}

// validateLent refuses a pooler's session whose role or database sets what cannot be pinned through it, and a server that
// is read-only.
func validateLent(ctx context.Context, conn *pgconn.PgConn) error {
	names := slices.Sorted(maps.Keys(unpinnable))
	calls := make([]string, len(names))
	for i, name := range names {
		calls[i] = fmt.Sprintf("pg_catalog.current_setting('%s')", name)
	}
	results, err := conn.Exec(ctx, "SELECT "+strings.Join(calls, ", ")).ReadAll()
	if err != nil {
		return fmt.Errorf("read the settings of a session that a pooler lends: %w", err)
	}
	var problems []string
	for i, name := range names {
		if have := string(results[0].Rows[0][i]); have != unpinnable[name] {
			problems = append(problems, fmt.Sprintf("%s is %q there and must be %q", name, have, unpinnable[name]))
		}
	}
	if problems != nil {
		return &SettingsError{problems}
	}
	return pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn)
}

// SettingsError says that sessions which a pooler lends have settings that nothing of ours works with.
type SettingsError struct{ problems []string }

func (e *SettingsError) Error() string {
	return "sessions through the pooler cannot be used: " + strings.Join(e.problems, "; ") +
		"; ALTER ROLE ... SET it for the role of reconciler, or let database_url lead to the server itself"
}
