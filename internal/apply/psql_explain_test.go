package apply_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func (d psqlDB) explain(t *testing.T, target, resource, key string) []string {
	t.Helper()
	rows, err := d.Pool.Query(t.Context(), "SELECT * FROM reconciler.explain($1, $2, $3)", target, resource, key)
	require.NoError(t, err)
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var sentence string
		require.NoError(t, rows.Scan(&sentence))
		out = append(out, sentence)
	}
	require.NoError(t, rows.Err())
	return out
}

func TestPsqlExplainTellsTheWayOfAChange(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	row := "Row: public.deployments has it, it is running and names target eu."
	nothing := "Ledger: the target does not have it, as far as is known."

	require.Equal(t, []string{
		"Row: public.deployments has no row with key '1'.",
		"Outbox: the newest change of the whole resource is row 1, revision 10, noticed at 2026-01-02 03:04:10+00; eu has recorded it.",
		nothing,
		"Next: nothing is to be done.",
	}, db.explain(t, "eu", "deployments", "1"))

	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	require.Equal(t, []string{
		row,
		"Outbox: the newest change of it is row 2, which has no revision yet: the leader has not seen it.",
		nothing,
		"Next: the target reads the change and looks at the row.",
	}, db.explain(t, "eu", "deployments", "1"))

	db.tick(t, 11)
	db.tick(t, 12)
	db.tick(t, 20)
	require.Equal(t, []string{
		row,
		"Outbox: the newest change of it is row 2, revision 11, noticed at 2026-01-02 03:04:11+00; eu has not recorded it: its cursor is at revision 10.",
		nothing,
		"Next: the target reads the change and looks at the row.",
	}, db.explain(t, "eu", "deployments", "1"))

	db.record(t, "eu", 20)
	recorded := "Outbox: the newest change of it is row 2, revision 11, noticed at 2026-01-02 03:04:11+00; eu has recorded it."
	db.ledger(t, "eu", "1", "applied", "applied_revision = 11")
	require.Equal(t, []string{row, recorded, "Ledger: applied at 2026-01-02 03:04:09+00, revision 11.", "Next: nothing is to be done."}, db.explain(t, "eu", "deployments", "1"))

	db.Exec(t, "DELETE FROM public.deployments")
	require.Equal(t, []string{
		"Row: public.deployments has no row with key '1'.",
		"Outbox: the newest change of it is row 3, which has no revision yet: the leader has not seen it.",
		"Ledger: applied at 2026-01-02 03:04:09+00, revision 11.",
		"Next: the target reads the change and looks at the row.",
	}, db.explain(t, "eu", "deployments", "1"))
}

func TestPsqlExplainTheRow(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, `
		CREATE TABLE public.pairs (name text, n int, region text, PRIMARY KEY (name, n));
		SELECT reconciler.track('pairs', 'public.pairs', '{name,n}', 'region', '10 / n > 0');
		INSERT INTO public.pairs VALUES ('a/b', 1, 'eu'), ('\', 2, 'us'), ('', 3, NULL), ('zero', 0, 'eu'), ('far', 20, 'eu');
		CREATE VIEW public.twice AS SELECT id / 2 AS half, region FROM public.deployments;
		INSERT INTO public.deployments (id, region) VALUES (100, 'eu');
		SELECT reconciler.track('twice', 'public.twice', '{half}', 'region', depends_on => '{}');
		INSERT INTO public.deployments (id, region) VALUES (101, 'eu')`)
	for _, c := range []struct{ target, resource, key, want string }{
		{"eu", "pairs", `a\/b/1`, "Row: public.pairs has it, it is running and names target eu."},
		{"eu", "pairs", `\\/2`, "Row: public.pairs has it and it is running, but it names target us, not eu."},
		{"eu", "pairs", `/3`, "Row: public.pairs has it, it is running and names no target, so every target is to have it."},
		{"eu", "pairs", `far/20`, "Row: public.pairs has it, and it is not running, so no target is to have it."},
		{"eu", "pairs", `zero/0`, "Row: it cannot be read: division by zero."},
		{"eu", "pairs", `a/b/1`, `Row: 'a/b/1' can be no key of public.pairs: it has 2 columns (name, n), joined by "/", with "\" before a "/" or "\" inside one.`},
		{"eu", "pairs", `x/one`, `Row: 'x/one' can be no key of public.pairs: invalid input syntax for type integer: "one".`},
		{"eu", "pairs", `far/020`, `Row: public.pairs has no row with key 'far/020'.`},
		{"eu", "deployments", `99999999999999999999`, `Row: '99999999999999999999' can be no key of public.deployments: value "99999999999999999999" is out of range for type bigint.`},
		{"eu", "twice", `50`, "Row: public.twice has it, it is running and names target eu. 2 running rows share this key, so it is blocked."},
	} {
		require.Equal(t, c.want, db.explain(t, c.target, c.resource, c.key)[0])
	}
}

// obstacles are what stands in the way of an object, one after the other on one database, and the last two lines of its explanation.
var obstacles = []struct {
	sql  string
	key  string
	want []string
}{
	{"SELECT", "1", []string{
		"Ledger: the target does not have it, as far as is known.",
		"Next: no change of it was captured (were triggers off?); the next sync applies it; at once: SELECT reconciler.resync('eu', 'deployments');",
	}},
	{"INSERT INTO reconciler.ledger SELECT (SELECT id FROM reconciler.targets WHERE name = 'eu'), resource_id, '3', state, wanted, present, 9, 9, applied_hash FROM reconciler.ledger", "3", []string{
		"Ledger: applied, revision 9.",
		"Next: no change of it was captured (were triggers off?); the next sync deletes it; at once: SELECT reconciler.resync('eu', 'deployments');",
	}},
	{"INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_revision, attempts, last_error, next_attempt_at) SELECT (SELECT id FROM reconciler.targets WHERE name = 'eu'), resource_id, '1', 'failing', true, true, 7, 3, 'no route', '2099-01-01 00:00:00+00' FROM reconciler.ledger WHERE key = '2'", "1", []string{
		"Ledger: failing: attempt 3 to apply it failed: no route; next attempt at 2099-01-01 00:00:00+00. The target has revision 7.",
		"Next: the next attempt is at 2099-01-01 00:00:00+00; at once: SELECT reconciler.retry('eu', 'deployments', '1');",
	}},
	{"UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = '2026-01-02 00:00:00+00' WHERE key = '1'", "1", []string{
		"Ledger: pending: waits for its turn. The target has revision 7.",
		"Next: it is looked at as soon as a worker is free.",
	}},
	{"UPDATE reconciler.targets SET circuit_open_since = '2026-01-02 12:00:00+00', circuit_error = 'connection refused' WHERE name = 'eu'", "1", []string{
		"Target: eu does not answer since 2026-01-02 12:00:00+00: connection refused.",
		"Next: it goes on when the target answers again.",
	}},
	{"UPDATE reconciler.ledger SET state = 'blocked', next_attempt_at = NULL, present = false WHERE key = '1'; UPDATE reconciler.targets SET circuit_open_since = NULL, circuit_error = NULL", "1", []string{
		"Ledger: blocked: cannot be applied: no route; waits for a change of its row, or SELECT reconciler.retry('eu', 'deployments', '1').",
		"Next: nothing, before its row changes or SELECT reconciler.retry('eu', 'deployments', '1');",
	}},
	{"UPDATE reconciler.ledger SET state = 'held', held_by = 'guard', wanted = false WHERE key = '1'; UPDATE reconciler.targets SET guard_since = '2026-01-02 11:00:00+00', guard_deletes = 1, guard_objects = 2 WHERE name = 'eu'", "1", []string{
		"Ledger: held: the guard holds its delete: 1 delete of 2 objects held since 2026-01-02 11:00:00+00; SELECT reconciler.approve('eu').",
		"Next: nothing, before SELECT reconciler.approve('eu');",
	}},
	{"UPDATE reconciler.ledger SET held_by = 'sync' WHERE key = '1'", "1", []string{
		"Ledger: held: its delete waits until the running sync has counted all deletes.",
		"Next: it goes on when all deletes are counted.",
	}},
	{"UPDATE reconciler.ledger SET held_by = 'gate' WHERE key = '1'", "1", []string{
		"Ledger: held: waits for its turn in a rollout.",
		"Next: it goes on when its rollout gets here.",
	}},
	{"UPDATE reconciler.ledger SET state = 'applied', held_by = NULL, wanted = true, present = true, applied_hash = '\\x00112233445566778899aabbccddeeff' WHERE key = '1'; UPDATE reconciler.targets SET draining = true WHERE name = 'eu'", "1", []string{
		"Target: all objects of eu are being deleted there, as release() asked.",
		"Next: it is deleted there.",
	}},
	{"UPDATE reconciler.targets SET draining = false WHERE name = 'eu'; DELETE FROM reconciler.cursors c USING reconciler.targets t WHERE c.consumer = t.id AND t.name = 'eu'", "4", []string{
		"Target: eu has no cursor: a full sync is due.",
		"Next: the full sync looks at it.",
	}},
	{"SELECT reconciler.write_cursor(t.id, 10, k.snapshot) FROM reconciler.targets t, reconciler.ticks k WHERE t.name = 'eu' AND k.revision = 10; UPDATE reconciler.installation SET floor_revision = 11", "1", []string{
		"Target: eu was away longer than the outbox keeps changes: a full sync is due.",
		"Next: the target reads the change and looks at the row.",
	}},
	{"UPDATE reconciler.targets SET lease_ttl = '0'", "1", []string{
		"Target: no process works on eu. Process host-1 leads.",
		"Next: nothing, before a process works on the target.",
	}},
	{"UPDATE reconciler.heartbeats SET at = '2026-01-02 12:00:00+00'", "1", []string{
		"Target: no process works on eu. No process is running: the last one was heard of at 2026-01-02 12:00:00+00; start `reconciler run`.",
		"Next: nothing, before a process works on the target.",
	}},
	{"UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann', paused_reason = 'new switch' WHERE name = 'eu'", "1", []string{
		"Target: eu is paused by ann since 2026-01-02 10:00:00+00: new switch.",
		"Next: nothing, before SELECT reconciler.resume('eu');",
	}},
	{"UPDATE reconciler.targets SET configured = false WHERE name = 'eu'", "1", []string{
		"Target: no running process has eu in its config.",
		"Next: nothing, before a running process has this target in its config.",
	}},
}

func TestPsqlExplainWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu'), (2, 'us')")
	db.tick(t, 11)
	db.record(t, "eu", 11)
	db.record(t, "us", 11)
	db.ledger(t, "us", "2", "applied", "")
	last := func(target, key string, n int) []string {
		all := db.explain(t, target, "deployments", key)
		return all[len(all)-n:]
	}

	for _, c := range obstacles {
		db.Exec(t, c.sql)
		require.Equal(t, c.want, last("eu", c.key, 2), c.sql)
	}
	require.Equal(t, []string{
		"Row: public.deployments has it and it is running, but it names target us, not asia.",
		"Outbox: the newest change of the whole resource is row 1, revision 10, noticed at 2026-01-02 03:04:10+00; no target of this name reads it.",
		"Ledger: the target does not have it, as far as is known.",
		"Target: no target is named 'asia'. Targets: eu, us",
		"Next: nothing, before a running process has this target in its config.",
	}, db.explain(t, "asia", "deployments", "2"))
}

func TestPsqlExplainWhatIsNotThere(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, []string{
		"Resource: nothing is tracked under the name 'deploys'. Resources: deployments",
		"Target: no target is named 'asia'. Targets: eu, us",
	}, db.explain(t, "asia", "deploys", "1"))
	require.Equal(t, []string{"Resource: nothing is tracked under the name 'deploys'. Resources: deployments"}, db.explain(t, "eu", "deploys", "1"))
	require.Equal(t, "explain takes a target, a resource and a key; none of them may be NULL", refusal(t, db.Pool, "SELECT * FROM reconciler.explain('eu', 'deployments', NULL)"))

	db.ledger(t, "eu", "1", "applied", "")
	db.Exec(t, "SELECT reconciler.untrack('deployments', 'delete'); UPDATE reconciler.resources SET removed_at = '2026-01-02 12:00:00+00'")
	require.Equal(t, []string{
		"Row: resource deployments is untracked since 2026-01-02 12:00:00+00; no row of it is wanted any more.",
		"Outbox: the newest change of the whole resource is row 2, which has no revision yet: the leader has not seen it.",
		"Ledger: applied at 2026-01-02 03:04:09+00, revision 9.",
		"Next: the target reads the change and looks at the row.",
	}, db.explain(t, "eu", "deployments", "1"))

	db.Exec(t, "UPDATE reconciler.resources SET removed_at = NULL")
	require.Equal(t, `Row: relation "reconciler.desired_deployments" does not exist; see SELECT * FROM reconciler.doctor();`, db.explain(t, "eu", "deployments", "1")[0])
}

func TestPsqlExplainSeesTheNewestChangeByPlaceNotByTransaction(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "INSERT INTO public.deployments (id, region) VALUES (1, 'eu')")
	// A transaction that began first and writes last has the lower id and the newer change.
	first, second := db.Conn(t), db.Conn(t)
	_, err := first.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()")
	require.NoError(t, err)
	_, err = second.Exec(t.Context(), "UPDATE public.deployments SET image = 'app:2' WHERE id = 1")
	require.NoError(t, err)
	_, err = first.Exec(t.Context(), "UPDATE public.deployments SET image = 'app:3' WHERE id = 1; COMMIT")
	require.NoError(t, err)
	require.Equal(t, "Outbox: the newest change of it is row 4, which has no revision yet: the leader has not seen it.", db.explain(t, "eu", "deployments", "1")[1])
}
