package rows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

const (
	driftFound = `SELECT coalesce(string_agg(key || ' ' || kind, ', ' ORDER BY key), '') FROM reconciler.drift`
	leftAlone  = `SELECT coalesce(string_agg(key || ' ' || state, ', ' ORDER BY key), '') FROM reconciler.wait('0s')`
)

func reporting(c *config.Target) { c.SyncMode = config.SyncReport }

// reported waits for a full sync that nobody has asked for by name, in report mode.
func reported(w *servertest.World, reasons string) {
	w.T.Helper()
	w.Settled("complete report", `SELECT state || ' ' || mode FROM reconciler.syncs WHERE reason = ANY (string_to_array($1, ' ')) ORDER BY id DESC LIMIT 1`, reasons)
}

// In report mode no sync of the product's own touches anything: not the first one, and not one after a restart. What changes
// while it runs is applied, wait() names what is not, and resync() puts all of it right.
func TestF3_ReportModeTouchesNothing(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	eu.Put("app/1", `"made by hand"`)
	eu.Put("app/stray", `"mine"`)
	found, _, _ := eu.Snapshot()
	server := w.Start(servertest.Named("eu", servertest.Listing{Place: eu}, reporting))
	reported(w, "first")
	have, calls, _ := eu.Snapshot()
	require.Equal(t, found, have)
	require.Empty(t, calls)
	require.Equal(t, "1 different, 2 missing, 3 missing, stray orphan", w.Text(driftFound))
	require.Equal(t, "1 reported, 2 reported, 3 reported", w.Text(leftAlone))
	require.Contains(t, w.Text(`SELECT string_agg(finding, '; ') FROM reconciler.doctor() WHERE NOT ok`), "3 objects of eu are not as their rows ask")

	w.DB.Exec(t, `UPDATE apps SET image = 'v9' WHERE id = 2`)
	w.DB.Exec(t, `INSERT INTO apps SELECT 4, region, 'v4' FROM apps WHERE id = 1`)
	found["app/2"], found["app/4"] = `"v9"`, `"v4"`
	eu.Eventually(t, found)
	w.Settled("1 reported, 3 reported", leftAlone)

	// A whole resource that changes is applied as far as it has changed.
	w.DB.Exec(t, `BEGIN; CREATE TEMP TABLE kept ON COMMIT DROP AS SELECT * FROM apps WHERE id <> 4; TRUNCATE apps; INSERT INTO apps SELECT * FROM kept; COMMIT`)
	delete(found, "app/4")
	found["app/1"], found["app/3"] = want["app/1"], want["app/3"]
	eu.Eventually(t, found)
	w.Settled("", leftAlone)

	eu.Put("app/1", `"edited"`)
	found["app/1"] = `"edited"`
	server.Stop(t)
	_, before, _ := eu.Snapshot()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}, reporting))
	reported(w, "start")
	have, after, _ := eu.Snapshot()
	require.Equal(t, found, have)
	require.Len(t, after, len(before))
	require.Equal(t, "1 different, stray orphan", w.Text(driftFound))
	require.Empty(t, w.Text(leftAlone), "it was applied, and edited since")

	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	want["app/2"] = `"v9"`
	eu.Eventually(t, want)
	w.Settled("", driftFound)
	w.Converged()
}
