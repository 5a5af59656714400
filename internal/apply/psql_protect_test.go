package apply_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Views, explain() and doctor() tell protected deletes from those that are too many.
func TestPsqlProtectedDeletes(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	guard := func() string {
		db.Exec(t, `SELECT reconciler.count_guard(id) FROM reconciler.targets WHERE name = 'eu'`)
		return db.line(t, `SELECT substring(guard FROM '^(.*) held since') FROM reconciler.status WHERE target = 'eu'`)
	}
	const approve = `; SELECT reconciler.approve('eu');`
	db.ledger(t, "eu", "1", "held", "held_by = 'guard', wanted = false, protected = true")
	require.Equal(t, "1 protected delete of 1 object", guard())
	require.Equal(t, "waits for approval of its delete: it is protected"+approve, db.line(t, `SELECT reason FROM reconciler.held`))
	require.Contains(t, db.explain(t, "eu", "deployments", "1"), "Ledger: held: waits for approval of its delete: it is protected; SELECT reconciler.approve('eu'). The target has revision 9.")
	db.ledger(t, "eu", "2", "held", "held_by = 'guard', wanted = false")
	require.Equal(t, "2 deletes (1 protected) of 1 object", guard())
	require.Equal(t, "the guard of eu holds 2 deletes (1 protected)", db.line(t, `SELECT finding FROM reconciler.doctor() WHERE finding LIKE 'the guard%'`))
	db.ledger(t, "eu", "3", "held", "held_by = 'guard', protected = true, last_error = 'Namespace x would be deleted'")
	require.Equal(t, "waits for approval: Namespace x would be deleted"+approve, db.line(t, `SELECT reason FROM reconciler.held WHERE key = '3'`))
	require.Equal(t, "3 deletes of eu approved", db.line(t, `SELECT reconciler.approve('eu')`))
	require.Empty(t, guard())

	require.Equal(t, "3 objects of eu to be deleted there; of them 2 protected: these wait for SELECT reconciler.approve('eu');",
		db.line(t, `SELECT reconciler.release('eu', 'delete')`))
}

// What is not known of an object is whether it is protected: what a crashed owner has called for, or has in hand.
func TestUnknownObjectsAreProtected(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	const take = `DELETE FROM reconciler.ledger; INSERT INTO reconciler.first_calls (target_id, term, resource_id, keys)
			SELECT t.id, 1, r.id, '{7}' FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu' AND r.name = 'deployments';
		SELECT reconciler.take_in_calls(id) FROM reconciler.targets WHERE name = 'eu'`
	const protected = `SELECT string_agg(protected::text, ',') FROM reconciler.objects`
	db.Exec(t, take)
	require.Equal(t, "false", db.line(t, protected))
	db.Exec(t, `UPDATE reconciler.resources SET protect = 'false'`)
	db.Exec(t, take)
	require.Equal(t, "true", db.line(t, protected))
	db.Exec(t, `DELETE FROM reconciler.ledger; SELECT reconciler.record_in_hand(t.id, t.owner, t.term, ARRAY[r.id], '{7}', '{true}', '1 minute')
		FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu' AND r.name = 'deployments'`)
	require.Equal(t, "true", db.line(t, protected))
}
