package desired

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/store"
)

// Resource is a definition, with the SQL that was made from it.
type Resource struct {
	ID      int32
	Name    string
	Version int32
	Removed bool // being deleted everywhere: no row of it is wanted

	keys      int  // number of key columns
	joined    bool // has depends_on
	protects  bool // some object may be protected
	anyTarget bool // some row may name no target, which means every target
	indexed   bool // rows that name no target can be walked in key order by an index
	view      string
	casts     []string // per key column: format of text -> typed value
	texts     []string // per key column: format of typed value -> text
	matches   map[string]matchColumn

	reads, firsts readSQLs
	castSQL       string
	entrySQL      string

	governed atomic.Bool // the last read found that tasks of an apply may govern objects

	pages    pageSQLs // compare running rows with the ledger
	keyPages pageSQLs // keys of all rows
}

type matchColumn struct {
	column string // match_N
	typ    string
}

// Joined reports whether rows of other tables decide about this resource's rows.
func (r *Resource) Joined() bool { return r.joined }

func newResource(row store.ResourceListRow) *Resource {
	r := &Resource{
		ID: row.ID, Name: row.Name, Version: row.Version, Removed: row.Removed,
		keys: len(row.KeyCasts), joined: len(row.MatchColumns) > 0, protects: row.Protects, anyTarget: row.AnyTarget, indexed: row.TargetIndexed,
		view:  pgx.Identifier{"reconciler", "desired_" + row.Name}.Sanitize(),
		casts: row.KeyCasts, texts: row.KeyTexts, matches: map[string]matchColumn{},
	}
	for i, column := range row.MatchColumns {
		r.matches[column] = matchColumn{column: fmt.Sprintf("match_%d", i+1), typ: row.MatchCasts[i]}
	}
	r.reads, r.firsts = r.buildReads()
	r.castSQL, r.entrySQL = r.buildCast(), r.buildEntry()
	r.pages = pageSQLs{first: r.buildPage(true), next: r.buildPage(false)}
	r.keyPages = pageSQLs{first: r.buildKeys(true), next: r.buildKeys(false)}
	return r
}

// is reports whether a definition is still the one that r was made from, and its types have their names of then.
func (r *Resource) is(row store.ResourceListRow) bool {
	if r.Version != row.Version || r.anyTarget != row.AnyTarget || r.indexed != row.TargetIndexed || !slices.Equal(r.casts, row.KeyCasts) || len(r.matches) != len(row.MatchColumns) {
		return false
	}
	for i, column := range row.MatchColumns {
		if r.matches[column].typ != row.MatchCasts[i] {
			return false
		}
	}
	return true
}

// each calls format for every key column (numbered from 1) and joins the results with ", ".
func (r *Resource) each(format func(n int) string) string {
	parts := make([]string, r.keys)
	for i := range parts {
		parts[i] = format(i + 1)
	}
	return strings.Join(parts, ", ")
}

// typed is the SQL that turns a text into the n-th key column's type.
func (r *Resource) typed(n int, text string) string {
	return strings.ReplaceAll(r.casts[n-1], "%s", text)
}

// text is the SQL that turns the n-th key column into text.
func (r *Resource) text(n int, value string) string {
	return strings.ReplaceAll(r.texts[n-1], "%s", value)
}

// hashSQL is driver.HashSpec in SQL.
func hashSQL(spec string) string {
	return fmt.Sprintf("substr(sha256(convert_to((%s)::text, 'UTF8')), 1, 16)", spec)
}
