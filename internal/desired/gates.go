package desired

// Gates is what an owner knows of applies as of one query. The next query starts there, and does not walk the index entries of
// applies that have ended, which PostgreSQL keeps while somebody's transaction stays open. It stays valid: any apply or operation
// that is not in it was written by a transaction that was in progress then, or began later. The zero value knows nothing.
type Gates struct {
	Since      uint64  // the oldest transaction that was open then
	Unopened   []int64 // applies whose tasks were not written down
	Operations []int64 // those of the target that governed objects
}

// GatesMost is how many applies, and how many operations, are remembered. With more of them, queries look at everything.
const GatesMost = 1000

// NewGates returns what a query has found; the zero value if that is more than GatesMost.
func NewGates(since uint64, unopened, operations []int64) Gates {
	if len(unopened) > GatesMost || len(operations) > GatesMost {
		return Gates{}
	}
	return Gates{Since: since, Unopened: unopened, Operations: operations}
}

// Known returns copies of the applies and the operations, never nil: pgx sends nil as NULL.
func (g Gates) Known() (unopened, operations []int64) {
	return append([]int64{}, g.Unopened...), append([]int64{}, g.Operations...)
}

// gatesAt is the number of the first of the parameters that gates are, after the parts of the keys: since, applies, and whether
// operations are known.
func (r *Resource) gatesAt() int {
	if r.Removed {
		return 4
	}
	return 4 + r.keys
}

// The gates of applies are looked at in the statement that reads the row: who sees a row that an apply has changed sees
// the apply. Most of the time there is none, and the two questions for that are about the resource and the target, asked
// once for all keys. Tasks are looked up for each key, by a query of its own: in the other one they would cost a third of it.
const (
	// unopenedSQL is made with the resource's id and the numbers of the parameters since and applies of the gates, governedSQL with
	// those of since and whether operations are known, and taskSQL with the resource's id and the names of the target's id and the key.
	unopenedSQL = "coalesce(i.key = ANY ((SELECT CASE WHEN u.ids = '{}' THEN '{}' ELSE reconciler.unopened_keys(%[1]d, u.ids) END FROM (SELECT $%[3]d::bigint[] || " +
		"ARRAY(SELECT a.id FROM reconciler.applies a WHERE a.opened_at IS NULL AND a.xid >= $%[2]d::xid8 AND a.strategy <> 'parallel' ORDER BY a.xid) AS ids OFFSET 0) AS u)::text[]), true)"
	governedSQL = "(SELECT $%[2]d::boolean OR (SELECT true FROM reconciler.operations n WHERE n.target_id = $2 AND NOT n.done AND n.xid >= $%[1]d::xid8 ORDER BY n.xid LIMIT 1) IS NOT NULL)"
	taskSQL     = "SELECT k.operation_id, o.is_open, o.reapply FROM reconciler.tasks k JOIN reconciler.operations o ON o.id = k.operation_id " +
		"WHERE k.target_id = %[2]s AND k.resource_id = %[1]d AND k.key = %[3]s AND k.governs LIMIT 1"
)
