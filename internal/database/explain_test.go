package database_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
)

// An error is explained once, by whichever caller is first, and stays the error that it was.
func TestExplainAddsItsSentenceOnce(t *testing.T) {
	t.Parallel()
	cause := &pgconn.PgError{Severity: "ERROR", Code: "42883", Message: "function reconciler.beat() does not exist"}
	once := database.Explain(fmt.Errorf("heartbeat: %w", cause))
	const text = "the schema is missing or too old: run `reconciler migrate up` (function reconciler.beat() does not exist): heartbeat: ERROR: function reconciler.beat() does not exist (SQLSTATE 42883)"
	require.EqualError(t, once, text)
	require.EqualError(t, database.Explain(fmt.Errorf("owner: %w", once)), "owner: "+text)
	require.ErrorIs(t, once, cause)
	require.Equal(t, "42883", database.Code(once))
}
