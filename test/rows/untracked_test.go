package rows_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// Who asks for a sync of a resource may learn of it after it has gone: no target must stop on that account.
func TestF14_ResourceThatIsTrackedAndUntrackedAtOnceStopsNobody(t *testing.T) {
	t.Parallel()
	w := servertest.WithApps(t)
	w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL)`)
	want := w.Fleet(1)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	start := func() *servertest.Process { return w.Start(servertest.Named("eu", eu), servertest.Named("us", us)) }
	p := start()
	eu.Eventually(t, want)
	w.Wait()
	id := 1
	for _, statements := range [][]string{
		{`BEGIN; SELECT reconciler.track('y', 'apps', '{id}', 'region'); SELECT reconciler.untrack('y'); COMMIT`},
		{`SELECT reconciler.track('y', 'others', '{id}', 'region')`, `BEGIN; TRUNCATE others; SELECT reconciler.untrack('y'); COMMIT`},
	} {
		for _, running := range []bool{true, false} {
			if !running {
				p.Stop(t)
			}
			for _, sql := range statements {
				w.DB.Exec(t, sql)
			}
			id++
			w.DB.Exec(t, `INSERT INTO apps (id, region, image) VALUES ($1, 'eu', 'v1')`, id)
			if !running {
				p = start()
			}
			want[fmt.Sprintf("app/%d", id)] = `"v1"`
			eu.Eventually(t, want)
			w.Wait()
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

// lookWaits returns once the leader, which looks for rows that can be no object, waits for the table others, and lookGivenUp once
// it does not: it gives up after half a second, too soon for questions from here.
var lookWaits, lookGivenUp = lookUntil("EXISTS"), lookUntil("NOT EXISTS")

func lookUntil(condition string) string {
	return `DO $$ BEGIN
		FOR i IN 1..20000 LOOP
			PERFORM pg_stat_clear_snapshot();
			IF ` + condition + ` (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE NOT l.granted AND l.relation = 'others'::regclass AND a.query LIKE '%INSERT INTO reconciler.misfits%') THEN
				RETURN;
			END IF;
			PERFORM pg_sleep(0.003);
		END LOOP;
		RAISE 'not in a minute';
	END $$`
}

func untrackALockedTable(t *testing.T, pooled bool) {
	t.Helper()
	w, want := servertest.HoldingFleet(t, 1)
	w.DB.Exec(t, `CREATE TABLE others (id int PRIMARY KEY, region text NOT NULL); SELECT reconciler.track('y', 'others', '{id}', 'region')`)
	person := w.Begin()
	w.In(person, `SET LOCAL deadlock_timeout = '700ms'; LOCK TABLE others`) // it looks before the leader would, which has 1 s
	untracked := make(chan error, 1)
	go func() {
		_, err := person.Exec(context.Background(), lookWaits+`; SELECT reconciler.untrack('y')`)
		untracked <- err
	}()
	eu := servertest.NewPlace()
	work := w.DB.URL
	if pooled {
		work = w.DB.Pooler(t, "").URL
	}
	w.StartWith(func(c *config.Config) { c.DatabaseURL = config.NewURL(work) }, servertest.Named("eu", eu))
	require.NoError(t, <-untracked)
	w.In(person, `COMMIT`)
	eu.Eventually(t, want)
	w.Wait()
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
			w, want := servertest.Fleet(t, 1)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Guard.MaxDeletes = new(0) }))
			eu.Eventually(t, want)
			w.Wait()
			begun, answer := make(chan struct{}), make(chan struct{})
			eu.Set(func(ctx context.Context, c servertest.Call) driver.Outcome {
				if c.Action == "delete" {
					return driver.Done()
				}
				close(begun)
				select {
				case <-answer:
				case <-ctx.Done():
				}
				eu.Put(c.ID(), c.Spec)
				return outcome
			})
			w.DB.Exec(t, `INSERT INTO apps VALUES (2, 'eu', 'v1')`)
			<-begun
			require.Equal(t, "2 objects of app are being deleted", w.Text(`SELECT reconciler.untrack('app', 'delete')`))
			close(answer)
			eu.Eventually(t, map[string]string{})
			w.Settled("0", `SELECT count(*)::text FROM reconciler.resources`)
		})
	}
}
