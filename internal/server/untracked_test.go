package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// Who asks for a sync of a resource may learn of it after it has gone: no target must stop on that account.
func TestF14_ResourceThatIsTrackedAndUntrackedAtOnceStopsNobody(t *testing.T) {
	t.Parallel()
	w := withApps(t)
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
	w, want := holdingFleet(t, 1)
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

// I1: a resource is untracked, with its objects deleted, while the first call for one of them is under way. The call takes effect and
// fails: the object is deleted all the same, although the guard would hold its delete.
func TestF100_UntrackStandsWhenTheCallUnderWayFails(t *testing.T) {
	t.Parallel()
	for name, outcome := range map[string]driver.Outcome{
		"Blocked": driver.Terminal(errors.New("422")), "Failing": driver.Backoff(errors.New("503")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 1)
			eu := newPlace()
			w.start(named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(0) }))
			eu.eventually(t, want)
			w.wait()
			begun, answer := make(chan struct{}), make(chan struct{})
			eu.set(func(ctx context.Context, c call) driver.Outcome {
				if c.Action == "delete" {
					return driver.Done()
				}
				close(begun)
				select {
				case <-answer:
				case <-ctx.Done():
				}
				eu.put(c.id(), c.Spec)
				return outcome
			})
			w.db.Exec(t, `INSERT INTO apps VALUES (2, 'eu', 'v1')`)
			<-begun
			require.Equal(t, "2 objects of app are being deleted", w.text(`SELECT reconciler.untrack('app', 'delete')`))
			close(answer)
			eu.eventually(t, map[string]string{})
			w.settled("0", `SELECT count(*)::text FROM reconciler.resources`)
		})
	}
}
