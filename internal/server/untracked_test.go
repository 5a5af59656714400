package server_test

import (
	"fmt"
	"testing"
)

// Who asks for a sync of a resource may learn of it after it has gone: no target must stop on that account.
func TestF14_ResourceThatIsTrackedAndUntrackedAtOnceStopsNobody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL)`)
	want := w.fleet(1)
	eu, us := newPlace(), newPlace()
	start := func() *process { return w.start(named("eu", eu), named("us", us)) }
	p := start()
	eu.eventually(t, want)
	w.wait()
	id := 1
	for _, statements := range [][]string{
		{`BEGIN; SELECT reconciler.track('y', 'apps', '{id}', 'region'); SELECT reconciler.untrack('y'); COMMIT`},
		{`SELECT reconciler.track('y', 'others', '{id}', 'region')`, `BEGIN; TRUNCATE others; SELECT reconciler.untrack('y'); COMMIT`},
	} {
		for _, running := range []bool{true, false} {
			if !running {
				p.stop(t)
			}
			for _, sql := range statements {
				w.db.Exec(t, sql)
			}
			id++
			w.db.Exec(t, `INSERT INTO apps (id, region, image) VALUES ($1, 'eu', 'v1')`, id)
			if !running {
				p = start()
			}
			want[fmt.Sprintf("app/%d", id)] = `"v1"`
			eu.eventually(t, want)
			w.wait()
		}
	}
}
