package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// An apply that nobody opens holds its own objects and nobody else's, however many they are: more than may wait in memory here.
func TestF79_ALargeApplyThatIsNotOpenHoldsNoOtherResource(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, image text); CREATE TABLE sites (id int PRIMARY KEY, host text)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'to_jsonb(image)'), reconciler.track('site', 'sites', '{id}', '''eu''', spec => 'to_jsonb(host)')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 64 }))
	w.DB.Exec(t, `INSERT INTO sites VALUES (1, 'a')`)
	eu.Eventually(t, map[string]string{"site/1": `"a"`})

	open := w.Text(`SELECT pg_get_functiondef('reconciler.open_apply'::regproc)`)
	w.DB.Exec(t, w.Text(`SELECT regexp_replace(pg_get_functiondef('reconciler.open_apply'::regproc), '\nBEGIN\n', E'\nBEGIN\nRETURN false;\n')`))
	apply(w, `'large'`, `INSERT INTO apps SELECT n, 'v1' FROM generate_series(1, 9000) AS n`)
	w.Seen("eu")
	w.DB.Exec(t, `UPDATE sites SET host = 'b'`)
	eu.Eventually(t, map[string]string{"site/1": `"b"`})
	require.Equal(t, "pending", w.Text(`SELECT state FROM reconciler.applies`))
	// What has no room in memory is in the ledger: it waits for its turn there.
	w.Settled("true", `SELECT (count(*) > 0)::text FROM reconciler.objects WHERE resource = 'app' AND state = 'pending'`)

	w.DB.Exec(t, open)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, 9_001, eu.Size())
	w.Converged()
}
