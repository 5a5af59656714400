package server_test

import (
	"fmt"
	"testing"

	"github.com/pgreconciler/reconciler/internal/config"
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

// A transaction that has locked a table and untracks it is not ended for a deadlock with the leader, which looks for rows that can be
// no object: the leader gives up first.
func TestUntrackOfALockedTableIsNoDeadlock(t *testing.T) {
	t.Parallel()
	for name, pooled := range map[string]bool{"Direct": false, "ThroughPooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			untrackALockedTable(t, pooled)
		})
	}
}

func untrackALockedTable(t *testing.T, pooled bool) {
	t.Helper()
	w := holding(t)
	want := w.fleet(1)
	w.db.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL); SELECT reconciler.track('y', 'others', '{id}', 'region')`)
	person := w.begin()
	w.in(person, `SET LOCAL deadlock_timeout = '700ms'; LOCK TABLE others`) // it looks before the leader would, which has 1 s
	eu := newPlace()
	work := w.db.URL
	if pooled {
		work = w.db.Pooler(t, "").URL
	}
	w.startWith(func(c *config.Config) { c.DatabaseURL = config.NewURL(work) }, named("eu", eu))
	w.settled("true", `SELECT (count(*) > 0)::text FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO reconciler.misfits%'`)
	w.in(person, `SELECT reconciler.untrack('y')`)
	w.in(person, `COMMIT`)
	eu.eventually(t, want)
	w.wait()
}
