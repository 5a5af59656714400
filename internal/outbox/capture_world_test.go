package outbox_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// world is a database of one test, and how far its outbox was looked at.
type world struct {
	*pgtest.DB
	seen int64
}

// newWorld returns a database in which statements were executed, whose outbox counts as read.
func newWorld(t *testing.T, statements ...string) *world {
	t.Helper()
	return worldOn(t, pgtest.New(t), statements...)
}

func worldOn(t *testing.T, db *pgtest.DB, statements ...string) *world {
	t.Helper()
	w := &world{DB: db}
	for _, statement := range statements {
		w.Exec(t, statement)
	}
	w.marks(t)
	return w
}

// marksSQL prints outbox rows: resource, target and key as JSON ("everywhere" and "whole" for NULL), or, for a change of a
// base table, the resource and the image.
const marksSQL = `SELECT o.seq, coalesce(r.name, o.resource_id::text) || ' ' || CASE WHEN o.dependency_id IS NOT NULL THEN o.image::text
	ELSE coalesce(to_json(o.target)::text, 'everywhere') || ' ' || coalesce(to_json(o.key)::text, 'whole') END
	FROM reconciler.outbox o LEFT JOIN reconciler.resources r ON r.id = o.resource_id WHERE o.seq > $1 ORDER BY o.seq`

// marks returns what was committed to the outbox since the last call, in order.
func (w *world) marks(t *testing.T) []string {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), marksSQL, w.seen)
	require.NoError(t, err)
	marks := []string{}
	var mark string
	_, err = pgx.ForEachRow(rows, []any{&w.seen, &mark}, func() error {
		marks = append(marks, mark)
		return nil
	})
	require.NoError(t, err)
	return marks
}

// marked executes statements in one transaction and checks the exact outbox rows that they leave.
func (w *world) marked(t *testing.T, statements string, want ...string) {
	t.Helper()
	w.Exec(t, statements)
	if want == nil {
		want = []string{}
	}
	require.Equal(t, want, w.marks(t), "after %s", statements)
}

// refused checks that a statement fails with exactly this message and hint, and returns the error.
func (w *world) refused(t *testing.T, statement, message, hint string) (code string) {
	t.Helper()
	return refused(t, w.Pool, statement, message, hint)
}

func refused(t *testing.T, db store.DBTX, statement, message, hint string) (code string) {
	t.Helper()
	_, err := db.Exec(t.Context(), statement)
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr, "after %s", statement)
	require.Equal(t, message, pgErr.Message, "after %s", statement)
	require.Equal(t, hint, pgErr.Hint, "after %s", statement)
	return pgErr.Code
}

// lines returns the rows of a query that has one text column.
func (w *world) lines(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), query, args...)
	require.NoError(t, err, "in %s", query)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err, "in %s", query)
	return lines
}

// problems returns what capture_problems says, one line for each.
func (w *world) problems(t *testing.T) []string {
	t.Helper()
	return w.lines(t, `SELECT format('%s: %s | %s | %s', resource, problem, remedy, CASE WHEN healable THEN 'healable' ELSE 'a person must' END) FROM reconciler.capture_problems() ORDER BY 1`)
}

// marksAfter returns all marks after a seq but those that are of no interest.
func (w *world) marksAfter(t *testing.T, seq int64, but ...string) []string {
	t.Helper()
	w.seen = seq
	return slices.DeleteFunc(w.marks(t), func(mark string) bool { return slices.Contains(but, mark) })
}
