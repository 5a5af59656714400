package desired

import (
	"cmp"
	"context"
	"fmt"

	"github.com/pgreconciler/reconciler/internal/store"
)

// Caller is the owner that reads rows in order to call for them.
type Caller struct {
	Owner    string // uuid of the process
	Term     int64
	Gates    Gates              // what it knows
	Most     int64              // bytes of specs and memories that it has room for, beside those of one object; 0: ReadMost
	Flush    bool               // what is recorded must outlive a crash of the server, though no event tells of it
	Recorded func(number int64) // told of every record that a read has made, also of one that fails in the end
}

// buildFirst makes a read write down, in the same statement, those objects that the ledger does not know the target to have and
// that are to be called for: wanted, and not held by a gate. Whatever locks out the readers of the rows (TRUNCATE, another
// definition, untrack()) then finds all that was read before it. The owner, its term and whether to flush come after the gates.
func (r *Resource) buildFirst(read, open string) string {
	n := r.gatesAt() + 4
	return fmt.Sprintf(`WITH looked AS MATERIALIZED (SELECT *, coalesce(spec IS NOT NULL AND present IS NOT TRUE AND NOT unopened AND %s AND octet_length(key) <= %d, false) AS to_call FROM (
%s) AS i), recorded AS MATERIALIZED (
  SELECT reconciler.record_first_calls($2, $%d::uuid, $%d::bigint, %d, array_agg(key), $%d::boolean OR bool_or(state IS NOT NULL)) AS number FROM looked WHERE to_call HAVING count(*) > 0)
SELECT n, key, remains, found, spec, spec_bytes, match, protect, state, wanted, present, desired_revision, applied_revision, applied_hash, failed_hash, attempts, last_error, held_by, approved, protected, generation, memory,
  due_in, applied_at, operation_id, is_open, reapply, unopened, governed, CASE WHEN to_call THEN (SELECT number FROM recorded) ELSE 0 END FROM looked ORDER BY n`,
		open, KeyBytesMost, read, n, n+1, r.ID, n+2)
}

// ReadToCall is Read for an owner that is about to call for what is wanted: each such object that the ledger does not know the
// target to have is in a record when it returns (see Row.First), and the owner ends the record when the calls have their
// results. It fails with SQLSTATE RC001 when the caller owns the target no more.
func (r *Resource) ReadToCall(ctx context.Context, db store.DBTX, target string, targetID int32, keys []string, by Caller) ([]Row, error) {
	return r.readKeys(ctx, read{
		db: db, target: target, targetID: targetID, gates: by.Gates, most: cmp.Or(by.Most, ReadMost), sqls: r.firsts, args: []any{by.Owner, by.Term, by.Flush}, recorded: by.Recorded,
	}, keys)
}
