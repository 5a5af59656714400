package server_test

import (
	"testing"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// Where no row ever changes, nothing moves the cursor of whoever expands changes of base tables.
func TestWaitEndsInAQuietDatabaseWithAJoinedResource(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE owners (id int PRIMARY KEY, name text); CREATE TABLE apps (id int PRIMARY KEY, owner int REFERENCES owners)`)
	w.DB.Exec(t, `INSERT INTO owners VALUES (1, 'ann'); INSERT INTO apps VALUES (1, 1)`)
	w.DB.Exec(t, `CREATE VIEW owned AS SELECT a.id, a.owner, o.name FROM apps a JOIN owners o ON o.id = a.owner`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'owned', '{id}', '''eu''', spec => 'to_jsonb(name)',
		depends_on => '{"apps": {"id": "id"}, "owners": {"id": "owner"}}')`)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, map[string]string{"app/1": `"ann"`})
	w.Wait()
}
