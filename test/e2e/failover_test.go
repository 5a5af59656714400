package e2e_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// C67, I12: the server comes back as a standby, which answers and takes no write (25006), and is promoted later, as after
// a failover. The process that runs all along waits, tells probes so, finds the primary again without a restart, notices
// the new timeline, and has every target applied again.
func TestStandbyIsWaitedOutUntilItIsPromoted(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	w := newWorldOn(t, cluster.New(t))
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 20) AS i`)
	w.configure([]object{w.fileTarget("eu")})
	d := w.start()
	w.wait()
	d.answers("/readyz", 200, "ok\n", patience)

	w.exec(`DO $$ BEGIN EXECUTE format('COPY (SELECT) TO %L', current_setting('data_directory') || '/standby.signal'); END $$`)
	cluster.Restart(t)
	eventually(t, patience, func() error {
		_, err := w.db.Pool.Exec(t.Context(), `UPDATE apps SET version = 2`)
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "25006" {
			return nil
		}
		return errors.Join(errors.New("it is no standby"), err)
	}, "a standby answers")
	d.answers("/readyz", 503, "the database does not answer\n", patience)
	d.answers("/healthz", 200, "ok\n", 0)
	r := w.cli("wait", "--timeout", "1s")
	require.Equal(t, 3, r.code, r.stderr)

	// The target changes behind its back: only an applying of everything puts it right.
	w.tamper("eu/app/7.json")
	w.insist(`SELECT pg_promote()`)
	w.insist(`UPDATE apps SET version = 3 WHERE id = 1`)
	d.awaits("database_restored")
	eventually(t, patience, func() error { return w.differs("eu", w.rows()["eu"]) }, "everything is applied again")
	d.answers("/readyz", 200, "ok\n", patience)
	w.wait()
	d.stop()
}
