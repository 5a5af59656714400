package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// A publication for all tables, as Debezium and blue/green upgrades make it, refuses UPDATE and DELETE of rows that nothing identifies.
func TestF127_AProcessWorksUnderAPublicationOfAllTables(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 20)
	w.DB.Exec(t, `CREATE PUBLICATION everything FOR ALL TABLES`)
	place := servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: place}, func(c *config.Target) {
		c.Guard.Window, c.Timeout = time.Second, time.Second // for which the next owner waits: a call may still be under way
	}))
	w.Wait()
	w.DB.Exec(t, `SELECT reconciler.set_applies('app', true)`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (101, 'no such target', 'v1'); DELETE FROM apps WHERE id < 3; UPDATE apps SET image = 'v2' WHERE id = 3`)
	w.Settled("1", `SELECT count(*)::text FROM reconciler.misfits`)
	w.DB.Exec(t, `UPDATE apps SET region = 'eu' WHERE id = 101`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.misfits`)
	w.Wait()
	require.Equal(t, w.Wanted("eu"), place.Have())
	w.Settled("0", `SELECT count(*)::text FROM reconciler.guard_passes`)

	w.DB.Exec(t, `INSERT INTO reconciler.health_asks (target_id, at, until) SELECT id, '2000-01-01', '2000-01-02' FROM reconciler.targets`)
	w.DB.Exec(t, `SELECT reconciler.ask_health()`)
	require.Equal(t, "1", w.Text(`SELECT count(*)::text FROM reconciler.health_asks`))
	w.DB.Exec(t, `SELECT reconciler.pause('eu'), reconciler.resume('eu'), reconciler.start_over('restored')`)
	w.DB.Exec(t, `SELECT reconciler.untrack('app', release => 'delete')`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.ledger`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.failing_loops`)
}
