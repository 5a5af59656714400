package desired

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// keyMost is the longest key that an index can hold, with room to spare; reconciler.unfit has it too.
	keyMost = 2000
	// targetMost is the longest name of a target that a config can hold.
	targetMost = 63
	// misfitsMost is how many rows of a resource that can be no object are told of.
	misfitsMost = 20
)

// fits is the condition that a row of the view d has a key that can be kept.
var fits = fmt.Sprintf("octet_length(d.key) <= %d", keyMost)

var validTarget = regexp.MustCompile(fmt.Sprintf(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,%d}$`, targetMost-1))

// TargetFits reports whether a config can hold a target of this name.
func TargetFits(name string) bool { return validTarget.MatchString(name) }

// Shortened reports whether a key of an event stands for one that is too long.
func Shortened(key string) bool {
	return strings.HasSuffix(key, ")") && shortened.MatchString(key)
}

var shortened = regexp.MustCompile(`\.\.\. \(sha256 [0-9a-f]{64}\)$`)

// Misfit is a running row that can be no object. Its texts are shortened.
type Misfit struct {
	Target *string
	Key    *string
	Reason string
}

// Misfits looks for running rows that can be no object, writes a few of them down for people to see in the place of those that
// were there before, and returns those that are new.
func (r *Resource) Misfits(ctx context.Context, db store.DBTX) ([]Misfit, error) {
	found := "SELECT NULL::text AS target, NULL::text AS key, NULL::text AS reason WHERE false"
	if !r.Removed {
		found = fmt.Sprintf(`SELECT reconciler.shortened(d.target, %[2]d) AS target, reconciler.shortened(d.key, 200) AS key, reconciler.unfit(d.target, d.key) AS reason
    FROM %[1]s AS d WHERE d.running AND (%[3]s IS NOT TRUE OR octet_length(d.target) > %[2]d OR d.target !~ '%[4]s') LIMIT %[5]d`, r.view, targetMost, fits, validTarget, misfitsMost)
	}
	rows, err := db.Query(ctx, fmt.Sprintf(`WITH found AS MATERIALIZED (%s),
gone AS (DELETE FROM reconciler.misfits m WHERE m.resource_id = $1 AND NOT EXISTS (SELECT FROM found f WHERE (f.target, f.key, f.reason) IS NOT DISTINCT FROM (m.target, m.key, m.reason)))
INSERT INTO reconciler.misfits (resource_id, target, key, reason)
SELECT $1, f.target, f.key, f.reason FROM found f WHERE EXISTS (SELECT FROM reconciler.resources r WHERE r.id = $1)
    AND NOT EXISTS (SELECT FROM reconciler.misfits m WHERE m.resource_id = $1 AND (f.target, f.key, f.reason) IS NOT DISTINCT FROM (m.target, m.key, m.reason))
RETURNING target, key, reason`, found), r.ID)
	if err != nil {
		return nil, fmt.Errorf("look for rows of resource %s that can be no object: %w", r.Name, err)
	}
	misfits, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Misfit])
	if err != nil {
		return nil, fmt.Errorf("look for rows of resource %s that can be no object: %w", r.Name, err)
	}
	return misfits, nil
}
