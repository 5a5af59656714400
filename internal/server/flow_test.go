package server_test

import (
	"testing"
)

func TestChangesReachTheirTarget(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text, on_ boolean NOT NULL DEFAULT true)`)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'a', true), (2, 'us', 'b', true), (3, 'eu', 'c', false)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'on_', spec => 'to_jsonb(image)')`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	eu.eventually(t, map[string]string{"app/1": `"a"`})
	us.eventually(t, map[string]string{"app/2": `"b"`})

	w.db.Exec(t, `UPDATE apps SET image = 'a2' WHERE id = 1`)
	eu.eventually(t, map[string]string{"app/1": `"a2"`})

	w.db.Exec(t, `UPDATE apps SET region = 'us' WHERE id = 1`)
	eu.eventually(t, map[string]string{})
	us.eventually(t, map[string]string{"app/1": `"a2"`, "app/2": `"b"`})

	w.db.Exec(t, `UPDATE apps SET on_ = true WHERE id = 3`)
	eu.eventually(t, map[string]string{"app/3": `"c"`})
	w.db.Exec(t, `DELETE FROM apps WHERE id = 3`)
	eu.eventually(t, map[string]string{})
	w.wait()
}
