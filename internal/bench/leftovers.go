package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// leftoversSQL lists the scratch databases there are. The digits of a name are the key of the lock that its run holds, in
// whatever database that is connected to; pg_locks shows a key of 64 bits in two halves.
const leftoversSQL = `SELECT d.datname, pg_has_role(d.datdba, 'USAGE'), EXISTS (
		SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
			AND (l.classid::bigint << 32 | l.objid::bigint) = ('x' || right(d.datname, 16))::bit(64)::bigint)
	FROM pg_database d WHERE d.datname ~ '^` + scratchPrefix + `[0-9a-f]{16}$' ORDER BY d.datname`

// leftover is a scratch database of another run.
type leftover struct {
	name string
	ours bool // may be dropped by this role
	held bool // its run is alive
}

// sweep drops what killed runs left, and tells of what it leaves alone. What it cannot drop is no reason not to measure.
func sweep(ctx context.Context, admin *pgx.Conn, note func(string, ...any)) error {
	rows, err := admin.Query(ctx, leftoversSQL)
	if err != nil {
		return fmt.Errorf("look for what killed runs left: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l leftover, err error) {
		return l, row.Scan(&l.name, &l.ours, &l.held)
	})
	if err != nil {
		return fmt.Errorf("look for what killed runs left: %w", err)
	}
	for _, l := range found {
		switch {
		case l.held:
			note("another run measures in %s at this moment: the figures of both are worth less", l.name)
		case !l.ours:
			note("a killed run of another role left the database %s, which only that role can drop", l.name)
		default:
			if err := dropDatabase(ctx, admin, l.name); err != nil {
				note("a killed run left the database %s, which was not dropped: %v", l.name, err)
				continue
			}
			note("dropped the database %s, which a killed run left", l.name)
		}
	}
	return nil
}
