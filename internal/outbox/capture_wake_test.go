package outbox_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// wakeWorld is a world with a sleeping leader (a session that holds the sleep lock) and a listener.
type wakeWorld struct {
	*world
	leader, listener *pgx.Conn
	fences           int
}

func newWakeWorld(t *testing.T, statements ...string) *wakeWorld {
	t.Helper()
	w := &wakeWorld{world: newWorld(t, statements...)}
	w.leader, w.listener = w.Conn(t), w.Conn(t)
	_, err := w.listener.Exec(t.Context(), `LISTEN reconciler_wake; LISTEN fence`)
	require.NoError(t, err)
	return w
}

func (w *wakeWorld) lead(t *testing.T, function string) {
	t.Helper()
	var done bool
	require.NoError(t, w.leader.QueryRow(t.Context(), `SELECT `+function+`(reconciler.sleep_lock())`).Scan(&done))
	require.True(t, done, function)
}

func (w *wakeWorld) sleep(t *testing.T) { t.Helper(); w.lead(t, "pg_try_advisory_lock") }
func (w *wakeWorld) wake(t *testing.T)  { t.Helper(); w.lead(t, "pg_advisory_unlock") }

// notified returns how many wake-ups were sent since the last call. Notifications arrive in the order of their commits,
// so after the fence there is none left.
func (w *wakeWorld) notified(t *testing.T) (n int) {
	t.Helper()
	w.fences++
	fence := fmt.Sprint(w.fences)
	w.Exec(t, `SELECT pg_notify('fence', $1)`, fence)
	for {
		got, err := w.listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		if got.Channel == "fence" && got.Payload == fence {
			return n
		}
		require.Equal(t, "reconciler_wake", got.Channel)
		require.Empty(t, got.Payload)
		n++
	}
}

// A writer notifies if, and only if, the leader sleeps.
func TestCaptureNotifiesASleepingLeader(t *testing.T) {
	t.Parallel()
	w := newWakeWorld(t, apps, `CREATE TABLE bases (id int PRIMARY KEY); CREATE VIEW v AS SELECT id FROM bases; SELECT reconciler.track('v', 'v', '{id}', '''eu''', depends_on => '{"bases": {"id": "id"}}')`)
	steps := []struct {
		sql  string
		want int
	}{
		{`INSERT INTO apps VALUES (9, 'eu')`, 1},
		{`INSERT INTO apps SELECT n, 'eu' FROM generate_series(10, 99) AS n`, 1}, // one for a transaction
		{`BEGIN; UPDATE apps SET region = 'us' WHERE id = 1; SAVEPOINT a; DELETE FROM apps WHERE id = 2; COMMIT`, 1},
		{`TRUNCATE apps`, 1}, {`INSERT INTO bases VALUES (9)`, 1}, {`TRUNCATE bases`, 1},
		{`INSERT INTO apps VALUES (9, 'eu', false)`, 0}, {`UPDATE apps SET seen = now()`, 0}, {`UPDATE apps SET region = region`, 0}, {`DELETE FROM apps WHERE id = 5`, 0},
		{`BEGIN; INSERT INTO apps VALUES (9, 'eu'); ROLLBACK`, 0},
	}
	for _, step := range steps {
		reset := func() {
			w.Exec(t, `TRUNCATE apps, bases; INSERT INTO apps VALUES (1, 'eu', true), (2, 'eu', true), (5, 'eu', false); INSERT INTO bases VALUES (1)`)
		}
		reset()
		w.Exec(t, step.sql)
		require.Zero(t, w.notified(t), "awake: %s", step.sql)
		reset()
		w.sleep(t)
		w.Exec(t, step.sql)
		require.Equal(t, step.want, w.notified(t), "asleep: %s", step.sql)
		w.wake(t)
	}
	w.Exec(t, `TRUNCATE apps, bases`)
	w.sleep(t)
	w.Exec(t, `SELECT reconciler.set_notify(false); INSERT INTO apps VALUES (1, 'eu'); INSERT INTO bases VALUES (1); TRUNCATE apps`)
	require.Zero(t, w.notified(t), "NOTIFY is off")
	w.Exec(t, `SELECT reconciler.track('later', 'apps', '{id}', 'region'); INSERT INTO apps VALUES (2, 'eu')`)
	require.Zero(t, w.notified(t), "NOTIFY is off for what is tracked later, too")
	w.Exec(t, `SELECT reconciler.set_notify(true); INSERT INTO apps VALUES (3, 'eu')`)
	require.Equal(t, 1, w.notified(t))
}

// C71: the writer that woke the leader, and stays open, is not in its way. A probe that were held until the end of the
// transaction would be.
func TestCaptureProbesWithoutHoldingTheLock(t *testing.T) {
	t.Parallel()
	w := newWakeWorld(t, apps)
	held := func() []string {
		return w.lines(t, `SELECT format('%s %s', l.pid = $1, l.mode) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, w.leader.PgConn().PID())
	}
	w.sleep(t)
	woke, awake := w.Conn(t), w.Conn(t)
	_, err := woke.Exec(t.Context(), `BEGIN; INSERT INTO apps VALUES (1, 'eu')`)
	require.NoError(t, err)
	require.Equal(t, []string{"t ExclusiveLock"}, held())
	w.wake(t)
	_, err = awake.Exec(t.Context(), `BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO apps SELECT n, 'eu' FROM generate_series(10, 20) AS n`)
	require.NoError(t, err)
	require.Empty(t, held(), "probes leave no lock")
	w.Exec(t, `INSERT INTO apps VALUES (2, 'eu')`)
	require.Zero(t, w.notified(t), "nobody notifies a leader that is awake")
	w.sleep(t) // which it can, while both are still open
	w.Exec(t, `INSERT INTO apps VALUES (3, 'eu')`)
	require.Equal(t, 1, w.notified(t))
	_, err = woke.Exec(t.Context(), `COMMIT`)
	require.NoError(t, err)
	require.Equal(t, 1, w.notified(t), "what was asked for asleep is sent at commit")
	_, err = awake.Exec(t.Context(), `COMMIT`)
	require.NoError(t, err)
	require.Zero(t, w.notified(t), "this one saw the leader awake: the doze phase is for it")
	require.Len(t, w.marks(t), 14)
}

// C14
func TestCaptureInPreparedTransactions(t *testing.T) {
	t.Parallel()
	w := newWakeWorld(t, apps)
	gid := func(n int) string { return fmt.Sprintf("'%s %d'", w.Name, n) }
	prepare := func(n int) string {
		return fmt.Sprintf(`BEGIN; INSERT INTO apps VALUES (%d, 'eu'); PREPARE TRANSACTION %s`, n, gid(n))
	}
	w.Exec(t, prepare(1)) // the leader is awake
	w.sleep(t)
	w.refused(t, prepare(2), `cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY`, "")
	w.Exec(t, `SELECT reconciler.set_notify(false)`)
	w.Exec(t, prepare(3))
	require.Empty(t, w.marks(t))
	w.Exec(t, `COMMIT PREPARED `+gid(3))
	require.Equal(t, []string{`app "eu" "3"`}, w.marks(t))
	w.seen = 0
	w.Exec(t, `ROLLBACK PREPARED `+gid(1))
	require.Equal(t, []string{`app everywhere whole`, `app "eu" "3"`}, w.marks(t))
	require.Zero(t, w.notified(t))
}
