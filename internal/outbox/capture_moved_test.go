package outbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// anApply inserts an apply of the current transaction, with an id.
const anApply = `INSERT INTO reconciler.applies (id, epoch, xid, xids, title, on_failure, strategy, soak, attempts, labels, created_at) OVERRIDING SYSTEM VALUE
	VALUES (%d, 0, %s, '{}', 'old', 'halt', 'rolling', '0', 10, '{}', '2020-01-01');`

// I8: a write succeeds and is captured, whatever keeps its transaction from being made an apply.
func TestF128_NoWriteFailsBecauseOfItsApply(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]string{
		"FunctionGone":        `DROP FUNCTION reconciler.begin_rollout(integer)`,
		"TableGone":           `DROP TABLE reconciler.applies CASCADE`,
		"TableRefuses":        `ALTER TABLE reconciler.applies ADD CHECK (title = '')`,
		"InstallationMissing": `DELETE FROM reconciler.installation`,
		"IdsBeginAnew":        fmt.Sprintf(anApply, 1, `'7'`),
		"TransactionIdTaken":  fmt.Sprintf(anApply, 1, `pg_current_xact_id()`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apps, `SELECT reconciler.set_applies('app', true)`)
			w.Exec(t, `BEGIN; `+broken+`; INSERT INTO apps (id, region) VALUES (7, 'eu'); UPDATE apps SET region = 'us'; COMMIT`)
			require.Equal(t, []string{"eu 7", "eu 7", "us 7"}, w.lines(t, `SELECT target || ' ' || key FROM reconciler.outbox WHERE key IS NOT NULL ORDER BY seq`))
		})
	}
}

// A definer that lost a right of its triggers still captures, and is told of.
func TestF128_ChangesAreCapturedWithoutTheRightToBeginAnApply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.Role(t, "definer", "")
	w.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text); ALTER TABLE apps OWNER TO `+role+`; SELECT reconciler.grant('`+role+`', 'definer')`)
	conn := w.ConnAs(t, role)
	_, err := conn.Exec(t.Context(), `SELECT reconciler.track('app', 'apps', '{id}', 'region'); SELECT reconciler.set_applies('app', true)`)
	require.NoError(t, err)
	w.Exec(t, `REVOKE EXECUTE ON FUNCTION reconciler.begin_rollout FROM `+role)
	w.marks(t)
	w.marked(t, `INSERT INTO apps VALUES (7, 'eu')`, `app "eu" "7"`)
	require.Equal(t, []string{`app: none of its changes is made an apply: its triggers run as ` + role +
		`, which may not call begin_rollout() | SELECT reconciler.grant('` + role + `', 'definer'); | a person must`}, w.problems(t))
	w.Exec(t, `SELECT reconciler.grant('`+role+`', 'definer')`)
	require.Empty(t, w.problems(t))
	w.Exec(t, `SELECT reconciler.untrack('app'); SELECT reconciler.revoke('`+role+`', 'definer')`)
}

// I12: whatever a copy carries, and whatever it leaves out, ticks and cursors of another database are believed nowhere.
func TestF128_MovesAreNoticedByWhatTheyCarry(t *testing.T) {
	t.Parallel()
	for name, moved := range map[string]string{
		"InstallationNotCopied":       `DELETE FROM reconciler.installation; INSERT INTO reconciler.installation DEFAULT VALUES`,
		"InstallationMissing":         `DELETE FROM reconciler.installation`,
		"LedgerAlone":                 `DELETE FROM reconciler.installation; INSERT INTO reconciler.installation DEFAULT VALUES; TRUNCATE reconciler.ticks`,
		"TickOfAServerThatWasFurther": `UPDATE reconciler.ticks SET snapshot = '900000000000:900000000000:'`,
		"CursorOfOne":                 `SELECT reconciler.write_cursor(1, 1, '900000000000:900000000000:')`,
		"SequenceStayedBehind":        `SELECT setval('reconciler.targets_id_seq', 1, false)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, apps, `INSERT INTO reconciler.targets (name, configured) VALUES ('eu', true)`)
			require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`), "a fresh one is not taken for moved")
			w.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present) VALUES (1, 1, 'a', 'blocked', true, false)`)
			require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
			w.Exec(t, moved)
			require.Equal(t, []string{"true"}, w.lines(t, `SELECT reconciler.adopt()::text`))
			require.Equal(t, []string{"false"}, w.lines(t, `SELECT reconciler.adopt()::text`))
			require.Equal(t, []string{"1 restored"}, w.lines(t, `SELECT count(*) || ' ' || min(reason) FROM reconciler.sync_runs WHERE state = 'requested'`))
		})
	}
}

// Transactions that find a sequence behind at the same time wait for none that stays open.
func TestF128_SequencesAreRaisedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, apps, `SELECT reconciler.set_applies('app', true)`)
	for id := range 20 {
		w.Exec(t, fmt.Sprintf(anApply, id+1, fmt.Sprintf("'%d'", id+1)))
	}
	begin := func(sql string) pgx.Tx {
		tx, err := w.Conn(t).Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), sql)
		require.NoError(t, err)
		return tx
	}
	raising := begin(`SELECT FROM reconciler.locks WHERE name = 'sequences' FOR UPDATE`)
	w.Exec(t, `INSERT INTO apps (id, region) VALUES (1, 'eu')`) // without an apply
	require.NoError(t, raising.Rollback(t.Context()))
	first := begin(`INSERT INTO apps (id, region) VALUES (2, 'eu')`)
	w.Exec(t, `INSERT INTO apps (id, region) VALUES (3, 'eu')`)
	require.NoError(t, first.Commit(t.Context()))
	require.Equal(t, []string{"1021", "1022"}, w.lines(t, `SELECT id::text FROM reconciler.applies WHERE automatic ORDER BY id`))
}

// A sequence is not behind because its next value is taken and committed while it is looked at.
func TestF128_ASequenceInUseIsNotBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	begins := w.Conn(t)
	go func() {
		for ctx.Err() == nil {
			if _, err := begins.Exec(t.Context(), `SELECT reconciler.begin_apply('x')`); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	looks := w.Conn(t)
	for range 500 {
		var behind int
		require.NoError(t, looks.QueryRow(t.Context(), `SELECT count(*) FROM reconciler.sequences_behind()`).Scan(&behind))
		require.Zero(t, behind)
	}
	stop()
	require.NoError(t, <-done)
}
