package desired_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const targetEU = int32(1)

// world is a database with the targets eu (1) and us (2).
type world struct {
	*pgtest.DB
	catalog *desired.Catalog
}

func newWorld(t *testing.T, statements ...string) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t), catalog: &desired.Catalog{}}
	w.Exec(t, `INSERT INTO reconciler.targets (name) VALUES ('eu'), ('us')`)
	for _, statement := range statements {
		w.Exec(t, statement)
	}
	return w
}

func (w *world) resource(t *testing.T, name string) *desired.Resource {
	t.Helper()
	_, err := w.catalog.Reload(t.Context(), w.Pool)
	require.NoError(t, err)
	r, ok := w.catalog.ByName(name)
	require.True(t, ok, "no resource %s", name)
	return r
}

// pages reads all pages of target eu and returns the keys that they name, in order.
func (w *world) pages(t *testing.T, r *desired.Resource, rows int) (keys []string, pages int) {
	t.Helper()
	for after := []string(nil); ; {
		page, err := r.Page(t.Context(), w.Pool, "eu", targetEU, after, rows, true)
		require.NoError(t, err)
		if page.Rows == 0 {
			require.Nil(t, page.Last)
			require.Empty(t, page.Differ)
			return keys, pages
		}
		require.LessOrEqual(t, page.Rows, int64(rows))
		require.Len(t, page.Differ, int(page.Rows))
		keys, pages, after = append(keys, page.Differ...), pages+1, page.Last
	}
}

func (w *world) text(t *testing.T, query string) (text string) {
	t.Helper()
	require.NoError(t, w.Pool.QueryRow(t.Context(), query).Scan(&text), query)
	return text
}

func (w *world) lines(t *testing.T, query string, args ...any) []string {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), query, args...)
	require.NoError(t, err, query)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err, query)
	return lines
}

// planner has the queries that it is given explained instead of executed: with the values known, and without.
type planner struct {
	t     *testing.T
	conn  *pgx.Conn
	known bool // pages are planned for their values: explain that plan only
	plan  string
}

var errExplained = errors.New("explained, not executed")

func (p *planner) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	p.t.Helper()
	p.plan = ""
	args = slices.DeleteFunc(args, func(arg any) bool { _, mode := arg.(pgx.QueryExecMode); return mode })
	literals := make([]string, len(args))
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			literals[i] = "'" + v + "'"
		case []string:
			literals[i] = "'{" + strings.Join(v, ",") + "}'"
		case []int64:
			literals[i] = "'{" + strings.Trim(strings.ReplaceAll(fmt.Sprint(v), " ", ","), "[]") + "}'"
		case uint64:
			literals[i] = fmt.Sprintf("'%d'", v) // of a transaction: there is no cast from a number
		default:
			literals[i] = fmt.Sprint(v)
		}
	}
	modes := []string{"force_custom_plan", "force_generic_plan"}
	if p.known {
		modes = modes[:1]
	}
	for _, mode := range modes {
		_, err := p.conn.Exec(ctx, fmt.Sprintf("SET plan_cache_mode = %s; PREPARE explained AS %s", mode, sql))
		require.NoError(p.t, err)
		rows, err := p.conn.Query(ctx, fmt.Sprintf("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE explained (%s)", strings.Join(literals, ", ")), pgx.QueryExecModeSimpleProtocol)
		require.NoError(p.t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(p.t, err)
		p.plan += mode + "\n" + strings.Join(lines, "\n") + "\n"
		_, err = p.conn.Exec(ctx, `DEALLOCATE explained`)
		require.NoError(p.t, err)
	}
	return nil, errExplained
}

func (p *planner) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, errExplained
}

func (p *planner) QueryRow(context.Context, string, ...any) pgx.Row { return nil }
