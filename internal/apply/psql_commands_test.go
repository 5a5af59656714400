package apply_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPsqlResync(t *testing.T) {
	t.Parallel()
	const runs = "SELECT target, resource, reason, mode, verify, state, requested_by FROM reconciler.syncs ORDER BY id"

	t.Run("AsksOnce", func(t *testing.T) {
		t.Parallel()
		db := newPsqlDB(t)
		require.Equal(t, []string{"sync of eu requested"}, db.hears(t, "SELECT reconciler.resync('eu')"))
		require.Equal(t, "sync of eu requested", db.line(t, "SELECT reconciler.resync(target => 'eu')"))
		require.Equal(t, "sync of eu, resource deployments, requested", db.line(t, "SELECT reconciler.resync(resource => 'deployments', target => 'eu')"))
		require.Equal(t, []string{
			"eu |  | resync | repair | t | requested | postgres",
			"eu | deployments | resync | repair | t | requested | postgres",
		}, db.lines(t, runs))
	})

	t.Run("TurnsAWaitingCheckIntoARepair", func(t *testing.T) {
		t.Parallel()
		db := newPsqlDB(t)
		db.Exec(t, "INSERT INTO reconciler.sync_runs (target_id, reason, mode, requested_by) SELECT id, 'interval', 'report', 'host-1' FROM reconciler.targets WHERE name = 'eu'")
		db.lines(t, "SELECT reconciler.resync('eu')")
		require.Equal(t, []string{"eu |  | resync | repair | t | requested | postgres"}, db.lines(t, runs))
	})

	t.Run("StandsBesideARunningOne", func(t *testing.T) {
		t.Parallel()
		db := newPsqlDB(t)
		db.Exec(t, "INSERT INTO reconciler.sync_runs (target_id, reason, state, started_at) SELECT id, 'interval', 'running', now() FROM reconciler.targets WHERE name = 'eu'")
		db.lines(t, "SELECT reconciler.resync('eu')")
		require.Equal(t, "2", db.line(t, "SELECT count(*) FROM reconciler.syncs"))
	})

	t.Run("MeansEveryConfiguredTargetByAStar", func(t *testing.T) {
		t.Parallel()
		db := newPsqlDB(t)
		db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('gone')")
		require.Equal(t, "sync of eu, us requested", db.line(t, "SELECT reconciler.resync('*')"))
		require.Equal(t, "sync of eu, us, resource deployments, requested", db.line(t, "SELECT reconciler.resync(NULL, 'deployments')"))
		require.Equal(t, "4", db.line(t, "SELECT count(*) FROM reconciler.syncs"))
	})

	t.Run("RefusesWhatItDoesNotKnow", func(t *testing.T) {
		t.Parallel()
		db := newPsqlDB(t)
		db.Exec(t, "INSERT INTO reconciler.targets (name) VALUES ('gone')")
		require.Equal(t, "no target is named 'ue'\nTargets: eu, gone, us", refusal(t, db.Pool, "SELECT reconciler.resync('ue')"))
		require.Equal(t, "no resource is named 'deployment'\nResources: deployments", refusal(t, db.Pool, "SELECT reconciler.resync('eu', 'deployment')"))
		require.Equal(t, "no running process has target 'gone' in its config, so nobody can sync it\nPut it into the config of a process, or forget it: SELECT reconciler.release('gone');",
			refusal(t, db.Pool, "SELECT reconciler.resync('gone')"))
		db.Exec(t, "DELETE FROM reconciler.targets")
		require.Equal(t, "no running process has a target in its config, so there is nothing to sync\nNo target is known yet: `reconciler run` writes down those of its config when it starts.",
			refusal(t, db.Pool, "SELECT reconciler.resync('*')"))
		require.Empty(t, db.lines(t, runs))
	})
}

func TestPsqlRetry(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) psqlDB {
		t.Helper()
		db := newPsqlDB(t)
		db.ledger(t, "eu", "1", "failing", `attempts = 5, last_error = 'x', failed_hash = '\x00112233445566778899aabbccddeeff', next_attempt_at = '2099-01-01'`)
		db.ledger(t, "eu", "2", "blocked", `attempts = 1, last_error = 'y', failed_hash = '\x00112233445566778899aabbccddeeff'`)
		db.ledger(t, "eu", "3", "pending", `next_attempt_at = '2099-01-01'`)
		db.ledger(t, "eu", "4", "applied", "")
		db.ledger(t, "eu", "5", "held", "")
		db.ledger(t, "us", "1", "failing", "attempts = 7")
		return db
	}
	const ledger = `SELECT t.name, l.key, l.state, l.attempts, l.failed_hash IS NULL, l.last_error, l.next_attempt_at <= clock_timestamp()
		FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id ORDER BY t.name, l.key`
	untouched := []string{"eu | 4 | applied | 0 | t |  | ", "eu | 5 | held | 0 | t |  | ", "us | 1 | failing | 7 | t |  | t"}

	t.Run("AllOfATarget", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		require.Equal(t, []string{"3"}, db.hears(t, "SELECT reconciler.retry('eu')"))
		require.Equal(t, append([]string{"eu | 1 | pending | 0 | t | x | t", "eu | 2 | pending | 0 | t | y | t", "eu | 3 | pending | 0 | t |  | t"}, untouched...), db.lines(t, ledger))
	})

	t.Run("OneObject", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		require.Equal(t, "1", db.line(t, "SELECT reconciler.retry(key => '2', resource => 'deployments', target => 'eu')"))
		require.Equal(t, append([]string{"eu | 1 | failing | 5 | f | x | f", "eu | 2 | pending | 0 | t | y | t", "eu | 3 | pending | 0 | t |  | f"}, untouched...), db.lines(t, ledger))
		require.Equal(t, "0", db.line(t, "SELECT reconciler.retry('eu', 'deployments', '4')"))
		require.Equal(t, "0", db.line(t, "SELECT reconciler.retry('eu', 'deployments', '5')"))
	})

	t.Run("RefusesWhatItDoesNotKnow", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		require.Equal(t, "target is NULL: name a target\nTargets: eu, us", refusal(t, db.Pool, "SELECT reconciler.retry(NULL)"))
		require.Equal(t, "no target is named 'asia'\nTargets: eu, us", refusal(t, db.Pool, "SELECT reconciler.retry('asia')"))
		require.Equal(t, "no resource is named 'x'\nResources: deployments", refusal(t, db.Pool, "SELECT reconciler.retry('eu', 'x')"))
		require.Equal(t, "key '1' is given without a resource\nResources: deployments", refusal(t, db.Pool, "SELECT reconciler.retry('eu', key => '1')"))
		require.Equal(t, "target eu has no object '99' of resource deployments\nWhat is known of it: SELECT reconciler.explain('eu', 'deployments', '99');",
			refusal(t, db.Pool, "SELECT reconciler.retry('eu', 'deployments', '99')"))
	})
}

func TestPsqlPauseAndResume(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	require.Equal(t, []string{"eu is paused, until SELECT reconciler.resume('eu');"}, db.hears(t, "SELECT reconciler.pause('eu', 'new switch')"))
	require.Equal(t, "paused | t | t", db.line(t, "SELECT state, paused LIKE 'paused by postgres since 2%: new switch', (SELECT paused_at IS NULL FROM reconciler.targets WHERE name = 'us') FROM reconciler.status WHERE target = 'eu'"))

	db.Exec(t, "UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann' WHERE name = 'eu'")
	require.Equal(t, "eu is already paused by ann since 2026-01-02 10:00:00+00: new switch", db.line(t, "SELECT reconciler.pause('eu')"))
	require.Equal(t, "eu is already paused by ann since 2026-01-02 10:00:00+00: broken switch", db.line(t, "SELECT reconciler.pause(reason => 'broken switch', target => 'eu')"))

	db.ledger(t, "eu", "1", "held", "")
	db.ledger(t, "eu", "2", "held", "held_by = 'guard'")
	require.Equal(t, []string{"eu goes on; 1 held object due"}, db.hears(t, "SELECT reconciler.resume('eu')"))
	require.Equal(t, []string{"1 | pending |  | t", "2 | held | guard | "}, db.lines(t, "SELECT key, state, held_by, next_attempt_at <= clock_timestamp() FROM reconciler.objects ORDER BY key"))
	require.Equal(t, "t", db.line(t, "SELECT (paused_at, paused_by, paused_reason) IS NOT DISTINCT FROM (NULL, NULL, NULL) FROM reconciler.targets WHERE name = 'eu'"))
	require.Equal(t, "eu was not paused", db.line(t, "SELECT reconciler.resume('eu')"))
	db.Exec(t, "UPDATE reconciler.ledger SET state = 'held', held_by = 'pause', next_attempt_at = NULL WHERE key = '1'")
	require.Equal(t, "eu goes on; 1 held object due", db.line(t, "SELECT reconciler.resume('eu')"), "left over by a process that had not heard of resume() yet")

	require.Equal(t, "no target is named 'asia'\nTargets: eu, us", refusal(t, db.Pool, "SELECT reconciler.pause('asia')"))
	require.Equal(t, "no target is named 'asia'\nTargets: eu, us", refusal(t, db.Pool, "SELECT reconciler.resume('asia')"))
}

func TestPsqlApprove(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	db.Exec(t, "UPDATE reconciler.targets SET guard_since = now(), guard_deletes = 2, guard_objects = 5")
	db.ledger(t, "eu", "1", "held", "wanted = false, held_by = 'guard'")
	db.ledger(t, "eu", "2", "held", "wanted = false, held_by = 'guard'")
	db.ledger(t, "eu", "3", "held", "wanted = false, held_by = 'sync'")
	db.ledger(t, "us", "1", "held", "wanted = false, held_by = 'guard'")
	require.Equal(t, []string{"2 deletes of eu approved"}, db.hears(t, "SELECT reconciler.approve('eu')"))
	require.Equal(t, []string{
		"eu | 1 | pending |  | t | t", "eu | 2 | pending |  | t | t", "eu | 3 | held | sync | f | ", "us | 1 | held | guard | f | ",
	}, db.lines(t, "SELECT t.name, l.key, l.state, l.held_by, l.approved, l.next_attempt_at <= clock_timestamp() FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id ORDER BY 1, 2"))
	require.Equal(t, []string{"eu | t", "us | f"}, db.lines(t, "SELECT name, (guard_since, guard_deletes, guard_objects) IS NOT DISTINCT FROM (NULL, NULL, NULL) FROM reconciler.targets ORDER BY name"))

	require.Equal(t, "the guard holds nothing of eu", db.line(t, "SELECT reconciler.approve('eu')"))
	db.Exec(t, "UPDATE reconciler.targets SET paused_at = '2026-01-02 10:00:00+00', paused_by = 'ann' WHERE name = 'us'")
	require.Equal(t, "1 delete of us approved; it is paused by ann since 2026-01-02 10:00:00+00: they wait for SELECT reconciler.resume('us');", db.line(t, "SELECT reconciler.approve(target => 'us')"))
	require.Equal(t, "no target is named 'asia'\nTargets: eu, us", refusal(t, db.Pool, "SELECT reconciler.approve('asia')"))
}

// C39: giving a target up is an act of its own.
func TestPsqlRelease(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) psqlDB {
		t.Helper()
		db := newPsqlDB(t)
		db.ledger(t, "eu", "1", "applied", "")
		db.ledger(t, "eu", "2", "applied", "")
		db.ledger(t, "us", "1", "applied", "")
		db.lines(t, "SELECT reconciler.resync('eu')")
		return db
	}

	t.Run("ForgetsATargetInNoConfig", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'eu'")
		require.Equal(t, []string{"target eu is forgotten, with 2 objects that it keeps"}, db.hears(t, "SELECT reconciler.release('eu')"))
		require.Equal(t, []string{"us | 1"}, db.lines(t, "SELECT target, key FROM reconciler.objects"))
		require.Equal(t, "us | 0", db.line(t, "SELECT target, (SELECT count(*) FROM reconciler.syncs) FROM reconciler.status"))
		require.Equal(t, "no target is named 'eu'\nTargets: us", refusal(t, db.Pool, "SELECT reconciler.release('eu')"))
	})

	t.Run("ForgetsATargetWhoseProcessIsAway", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		db.Exec(t, "INSERT INTO reconciler.configs (instance, source, targets) SELECT id, name, targets FROM reconciler.instances")
		db.Exec(t, "UPDATE reconciler.heartbeats SET at = at - interval '16 s'")
		require.Equal(t, []string{"target eu is forgotten, with 2 objects that it keeps; a process that starts with it in its config begins anew there"},
			db.hears(t, "SELECT reconciler.release('eu')"))
		require.Equal(t, "{us}", db.line(t, "SELECT targets FROM reconciler.configs"))
	})

	t.Run("EmptiesATargetFirst", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		require.Equal(t, []string{"2 objects of eu to be deleted there"}, db.hears(t, "SELECT reconciler.release(target => 'eu', objects => 'delete')"))
		require.Equal(t, []string{"eu | t", "us | f"}, db.lines(t, "SELECT name, draining FROM reconciler.targets ORDER BY name"))
		require.Equal(t, "3", db.line(t, "SELECT count(*) FROM reconciler.objects"))
	})

	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		db := setup(t)
		require.Equal(t, "target 'eu' is in the config of a running process, which would apply its objects again\nTake it out of the config and restart first; or have its objects deleted there: SELECT reconciler.release('eu', 'delete');",
			refusal(t, db.Pool, "SELECT reconciler.release('eu')"))
		require.Equal(t, "objects must be 'keep' (the target keeps them) or 'delete' (they are deleted there), not 'drop'", refusal(t, db.Pool, "SELECT reconciler.release('eu', 'drop')"))
		require.Equal(t, "objects must be 'keep' (the target keeps them) or 'delete' (they are deleted there), not NULL", refusal(t, db.Pool, "SELECT reconciler.release('eu', NULL)"))
		db.Exec(t, "UPDATE reconciler.targets SET configured = false WHERE name = 'eu'")
		require.Equal(t, "no running process has target 'eu' in its config, so nobody can delete its objects there\nPut it into the config of a process, or leave its objects there: SELECT reconciler.release('eu');",
			refusal(t, db.Pool, "SELECT reconciler.release('eu', 'delete')"))
		require.Equal(t, "3", db.line(t, "SELECT count(*) FROM reconciler.objects"))
	})
}

// C68: names come from rows, and the statements that are shown for copying must do what they say and nothing else.
func TestPsqlHostileNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`'); DROP TABLE reconciler.ledger CASCADE; --`, `"; \! rm`, `-x`, "a\nb", `\'`, `%s%n$I`, `ünï ☃`, `../../etc/passwd`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newPsqlDB(t)
			db.Exec(t, "UPDATE reconciler.targets SET name = $1, paused_at = now(), paused_by = $1, paused_reason = $1 WHERE name = 'eu'", name)
			db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, held_by, last_error)
				SELECT t.id, r.id, $1 || s, s::reconciler.object_state, true, true, CASE s WHEN 'held' THEN 'pause' END, $1
				FROM reconciler.targets t, reconciler.resources r, unnest('{blocked,held}'::text[]) AS s WHERE t.name = $1`, name)
			suggested := "SELECT substring(reason FROM 'SELECT reconciler[.].*;$') FROM reconciler.pending WHERE state = '"

			require.Equal(t, "1", db.line(t, db.line(t, suggested+"blocked'")))
			statement := db.line(t, suggested+"held'")
			require.Equal(t, name+" goes on; 1 held object due", db.line(t, statement), statement)
			require.Equal(t, "2", db.line(t, "SELECT count(*) FROM reconciler.pending WHERE state = 'pending'"))

			var sentences string
			require.NoError(t, db.Pool.QueryRow(t.Context(), "SELECT string_agg(e, E'\n') FROM reconciler.explain($1, 'deployments', $1) AS e", name).Scan(&sentences))
			require.Contains(t, sentences, "Ledger: the target does not have it, as far as is known.")
			require.True(t, strings.HasPrefix(refusal(t, db.Pool, "SELECT reconciler.retry(quote_literal('x' || chr(39)))"), `no target is named '''x'''''''`))
		})
	}
}
