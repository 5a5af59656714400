package desired

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/store"
)

// Beginner begins a transaction, or in a transaction a savepoint: *pgxpool.Pool, *pgx.Conn and pgx.Tx are ones.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Expand marks every object that changed rows of base tables concern: the rows of the resource whose columns equal an
// image, and the objects in the ledger that once matched one (their row may be gone). Images that name the same columns
// take one statement, whatever their number and that of the objects; it returns how many objects it marked. When one
// of the rows that an image concerns cannot be evaluated all of them are marked for every target, running or not, and
// looking at each finds the culprit.
//
// In a transaction it works in savepoints.
func (r *Resource) Expand(ctx context.Context, db Beginner, images ...json.RawMessage) (int64, error) {
	groups, err := r.groups(images)
	if err != nil {
		return 0, err
	}
	total := int64(0)
	for _, g := range groups {
		n, err := r.expandGroup(ctx, db, g, g.images)
		if err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// Statement is one that returns nothing but how many rows it wrote.
type Statement struct {
	SQL  string
	Args []any
}

// Expansion returns the statements by which Expand begins. They do the same when each row that the images concern can be evaluated.
func (r *Resource) Expansion(images ...json.RawMessage) ([]Statement, error) {
	groups, err := r.groups(images)
	if err != nil {
		return nil, err
	}
	statements := make([]Statement, len(groups))
	for i, g := range groups {
		statements[i] = r.marking(g, g.images)
	}
	return statements, nil
}

// groups sorts images by the columns that they name.
func (r *Resource) groups(images []json.RawMessage) ([]*imageGroup, error) {
	if r.Removed {
		return nil, nil
	}
	groups := map[string]*imageGroup{}
	for _, image := range images {
		if err := r.sort(groups, image); err != nil {
			return nil, err
		}
	}
	sorted := make([]*imageGroup, 0, len(groups))
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		sorted = append(sorted, groups[name])
	}
	return sorted, nil
}

// imageGroup holds images that name the same columns.
type imageGroup struct {
	columns []string
	where   string // of the rows that an image c.image concerns
	images  []string
}

// sort puts an image into its group.
func (r *Resource) sort(groups map[string]*imageGroup, image json.RawMessage) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(image, &values); err != nil {
		return fmt.Errorf("read the image of a change for resource %s: %w", r.Name, err)
	}
	columns := slices.Sorted(maps.Keys(values))
	name := fmt.Sprintf("%q", columns)
	if groups[name] == nil {
		conditions := make([]string, len(columns))
		for i, column := range columns {
			m, ok := r.matches[column]
			if !ok {
				// The definition changed after this event; track() marked everything then.
				return nil
			}
			conditions[i] = fmt.Sprintf("d.%s = (c.image ->> ($3::text[])[%d])::%s", m.column, i+1, m.typ)
		}
		groups[name] = &imageGroup{columns: columns, where: strings.Join(conditions, " AND ")}
	}
	groups[name].images = append(groups[name].images, string(image))
	return nil
}

// expandGroup marks what images concern. A row that cannot be evaluated is narrowed down to the images that concern it.
func (r *Resource) expandGroup(ctx context.Context, db Beginner, g *imageGroup, images []string) (int64, error) {
	n, err := mark(ctx, db, r.marking(g, images))
	if isDataError(err) && len(images) > 1 {
		half := len(images) / 2
		left, err := r.expandGroup(ctx, db, g, images[:half])
		if err != nil {
			return left, err
		}
		right, err := r.expandGroup(ctx, db, g, images[half:])
		return left + right, err
	}
	if isDataError(err) {
		n, err = mark(ctx, db, r.markingOf("NULL::text AS target, d.key, NULL::boolean AS protect", fits+" AND "+g.where, g.columns, images))
	}
	if err != nil {
		return 0, fmt.Errorf("find the objects of resource %s that %s concerns: %w", r.Name, images[0], err)
	}
	return n, nil
}

// marking marks what images of a group concern.
func (r *Resource) marking(g *imageGroup, images []string) Statement {
	protect := "NULL::boolean"
	if r.protects {
		protect = "d.protect IS NOT FALSE"
	}
	return r.markingOf(fmt.Sprintf("reconciler.shortened(d.target, %d) AS target, d.key, %s AS protect", targetMost, protect), "d.running AND "+fits+" AND "+g.where, g.columns, images)
}

// markingOf looks the rows up image by image, by their indexes: OFFSET 0 keeps the planner from reading the view as a whole,
// and "+ 0" from walking all objects of the resource by the primary key. (Such a plan, in a ledger without statistics, took
// 1,150 ms for 500 images with 3,000 objects; by the index of what matches it is 9 ms.) The names of targets are read once, not
// for each object.
func (r *Resource) markingOf(columns, where string, names, images []string) Statement {
	sql := fmt.Sprintf(`WITH places AS MATERIALIZED (SELECT t.id, t.name FROM reconciler.targets t)
INSERT INTO reconciler.outbox (resource_id, target, key, protect) SELECT $2::int, m.target, m.key, bool_or(m.protect) FROM (
SELECT o.target, o.key, o.protect FROM unnest($1::text[]::jsonb[]) AS c(image) CROSS JOIN LATERAL (SELECT %s FROM %s AS d WHERE %s OFFSET 0) AS o
UNION ALL
SELECT p.name, o.key, NULL FROM unnest($1::text[]::jsonb[]) AS c(image) CROSS JOIN LATERAL (
    SELECT l.target_id, l.key FROM reconciler.ledger l
    WHERE l.resource_id + 0 = $2::int AND l.match IS NOT NULL AND l.match @> c.image OFFSET 0) AS o JOIN places p ON p.id = o.target_id
) AS m GROUP BY m.target, m.key`, columns, r.view, where)
	return Statement{sql, []any{images, r.ID, names}}
}

func mark(ctx context.Context, db Beginner, s Statement) (n int64, err error) {
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.SQL, s.Args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// Targets returns the names that running rows give as target and a config can hold, at most limit of them.
func (r *Resource) Targets(ctx context.Context, db store.DBTX, limit int) ([]string, error) {
	if r.Removed {
		return nil, nil
	}
	rows, err := db.Query(ctx, fmt.Sprintf("SELECT DISTINCT target FROM %s WHERE running AND octet_length(target) <= %d AND target ~ '%s' LIMIT $1", r.view, targetMost, validTarget), limit)
	if err != nil {
		return nil, fmt.Errorf("read the targets of resource %s: %w", r.Name, err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("read the targets of resource %s: %w", r.Name, err)
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
