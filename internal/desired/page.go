package desired

import (
	"context"
	"fmt"

	"github.com/pgreconciler/reconciler/internal/store"
)

// Page is one page of the running rows of a target, in key order.
type Page struct {
	Rows    int64    // rows in the page
	Differ  []string // keys that the ledger does not know to be as wanted
	Last    []string // texts of the last row's key columns; nil when the page is empty
	Spoiled bool     // some row could not be read: Differ holds every key, for each to be looked at by itself
}

// from is the part of a page query that finds the rows, CTEs that end with page: $1 target name, $3 page rows, and (but for
// the first page) $4... the key to go on after. The first page is a query of its own: "first OR key > x" would not walk the
// index. The LIMIT is a subquery, so that the planner does not know it: on a table without statistics it takes all rows for
// fewer than a page, and would read and sort the rest of the table for each.
// A row that names no target is for every target; a union, because OR would not walk an index there either. Each side is
// planned by itself: under the LIMIT of both the planner takes a hundredth of the rows for enough, and walked the primary
// key, past every row of the table, to the few that one side has.
func (r *Resource) from(columns string, filter string, first bool) string {
	if filter == "" || !r.anyTarget {
		if filter != "" {
			filter = "d.target = $1 AND " + filter
		}
		return "page AS MATERIALIZED " + r.stretch(columns, filter, "", first)
	}
	walk := ""
	if r.indexed {
		walk = "d.target, " // "IS NULL" fixes no value for the planner: without it the rows of the index are sorted
	}
	order := r.each(func(n int) string { return fmt.Sprintf("key_%d", n) })
	return fmt.Sprintf("named AS MATERIALIZED %s, every AS MATERIALIZED %s, page AS MATERIALIZED (SELECT * FROM (TABLE named UNION ALL TABLE every) AS u ORDER BY %s LIMIT $3::int)",
		r.stretch(columns, "d.target = $1 AND "+filter, "", first), r.stretch(columns, "d.target IS NULL AND "+filter, walk, first), order)
}

// stretch reads rows in key order, at most a page of them.
func (r *Resource) stretch(columns, where, walk string, first bool) string {
	keys := r.each(func(n int) string { return fmt.Sprintf("d.key_%d", n) })
	after := "true"
	if !first {
		after = fmt.Sprintf("(%s) > (%s)", keys, r.each(func(n int) string { return r.typed(n, fmt.Sprintf("$%d::text", n+3)) }))
	}
	return fmt.Sprintf("(SELECT %s FROM %s AS d WHERE %s %s AND %s ORDER BY %s%s LIMIT (SELECT $3::int))", columns, r.view, where, after, fits, walk, keys)
}

// buildPage compares a page of running rows with the ledger inside PostgreSQL, so that only what differs crosses the
// wire. The first row of the result sums up: how many rows, and the last key.
func (r *Resource) buildPage(first bool) string {
	typed := r.each(func(n int) string { return fmt.Sprintf("d.key_%d", n) })
	order := r.each(func(n int) string { return fmt.Sprintf("p.key_%d DESC", n) })
	last := r.each(func(n int) string { return r.text(n, fmt.Sprintf("p.key_%d", n)) })
	all := 4
	if !first {
		all += r.keys
	}
	return fmt.Sprintf(`WITH %s
SELECT true, (SELECT count(*) FROM page), NULL::text, (SELECT ARRAY[%s] FROM page AS p ORDER BY %s LIMIT 1)
UNION ALL
SELECT false, 0, p.key, NULL FROM page AS p
LEFT JOIN LATERAL (SELECT l.state, l.wanted, l.applied_hash, l.failed_hash, l.protected, l.held_by FROM reconciler.ledger l
    WHERE l.target_id = $2 AND l.resource_id = %d AND l.key = p.key COLLATE "C" LIMIT 1) AS l ON true
WHERE l.state IS NULL OR NOT l.wanted OR l.protected IS DISTINCT FROM (p.protect IS NOT FALSE) AND l.held_by IS DISTINCT FROM 'guard'
   OR $%d::boolean OR l.state = 'applied' AND (p.spec IS NULL OR l.applied_hash <> %s)
   OR l.state = 'blocked' AND l.failed_hash IS DISTINCT FROM %s`,
		r.from("d.key, d.spec, d.protect, "+typed, "d.running AND", first), last, order, r.ID, all, hashSQL("p.spec"), hashSQL("p.spec"))
}

// buildKeys reads the keys of all rows, running or not: for when rows spoil everything else.
func (r *Resource) buildKeys(first bool) string {
	typed := r.each(func(n int) string { return fmt.Sprintf("d.key_%d", n) })
	last := r.each(func(n int) string { return r.text(n, fmt.Sprintf("p.key_%d", n)) })
	return fmt.Sprintf("WITH %s SELECT $1::text IS NULL AND $2::int IS NULL, p.key, ARRAY[%s] FROM page AS p", r.from("d.key, "+typed, "", first), last)
}

// pageSQLs are the two queries of a kind of page.
type pageSQLs struct{ first, next string }

func (q pageSQLs) args(target string, targetID int32, after []string, rows int) (sql string, args []any) {
	args = []any{target, targetID, rows}
	if after == nil {
		return q.first, args
	}
	for _, part := range after {
		args = append(args, part)
	}
	return q.next, args
}

// Page reads the page of running rows after a key (nil for the first) and says which of them the ledger does not know
// to be as wanted. When a row cannot be evaluated, all keys of that stretch of the table are returned instead, running
// or not, and looking at each by itself finds the culprit: a bad row hides no other and ends no sync.
//
// With all, every key of the page counts as differing.
func (r *Resource) Page(ctx context.Context, db store.DBTX, target string, targetID int32, after []string, rows int, all bool) (Page, error) {
	if r.Removed {
		return Page{}, nil
	}
	page, err := r.comparePage(ctx, db, target, targetID, after, rows, all)
	if err == nil || !isDataError(err) {
		return page, err
	}
	return r.keysPage(ctx, db, target, targetID, after, rows)
}

func (r *Resource) comparePage(ctx context.Context, db store.DBTX, target string, targetID int32, after []string, rows int, all bool) (Page, error) {
	var page Page
	sql, args := r.pages.args(target, targetID, after, rows)
	result, err := db.Query(ctx, sql, planned(append(args, all), rows)...)
	if err != nil {
		return page, fmt.Errorf("read a page of resource %s: %w", r.Name, err)
	}
	defer result.Close()
	for result.Next() {
		var (
			sum  bool
			n    int64
			key  *string
			last []string
		)
		if err := result.Scan(&sum, &n, &key, &last); err != nil {
			return page, fmt.Errorf("read a page of resource %s: %w", r.Name, err)
		}
		if sum {
			page.Rows, page.Last = n, last
		} else {
			page.Differ = append(page.Differ, *key)
		}
	}
	if err := result.Err(); err != nil {
		return page, fmt.Errorf("read a page of resource %s after %s: %w", r.Name, describe(after), err)
	}
	return page, nil
}

func (r *Resource) keysPage(ctx context.Context, db store.DBTX, target string, targetID int32, after []string, rows int) (Page, error) {
	page := Page{Spoiled: true}
	sql, args := r.keyPages.args(target, targetID, after, rows)
	result, err := db.Query(ctx, sql, planned(args, rows)...)
	if err != nil {
		return page, fmt.Errorf("read keys of resource %s: %w", r.Name, err)
	}
	defer result.Close()
	for result.Next() {
		var (
			unused bool
			key    string
		)
		if err := result.Scan(&unused, &key, &page.Last); err != nil {
			return page, fmt.Errorf("read keys of resource %s: %w", r.Name, err)
		}
		page.Rows++
		page.Differ = append(page.Differ, key)
	}
	if err := result.Err(); err != nil {
		return page, fmt.Errorf("read keys of resource %s after %s: %w", r.Name, describe(after), err)
	}
	return page, nil
}

// HasRow reports whether the target has a row, running or not. It may read every row.
func (r *Resource) HasRow(ctx context.Context, db store.DBTX, target string) (has bool, err error) {
	if r.Removed {
		return false, nil
	}
	sql := fmt.Sprintf("SELECT EXISTS (SELECT FROM %s AS d WHERE d.target = $1) OR EXISTS (SELECT FROM %s AS d WHERE d.target IS NULL)", r.view, r.view)
	if err := db.QueryRow(ctx, sql, target).Scan(&has); err != nil {
		return false, fmt.Errorf("look for a row of resource %s: %w", r.Name, err)
	}
	return has, nil
}

func describe(after []string) string {
	if after == nil {
		return "the beginning"
	}
	return fmt.Sprintf("key %q", JoinKey(after))
}
