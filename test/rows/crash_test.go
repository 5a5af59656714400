package rows_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// Where a call ends when its process dies.
const (
	passes = ""
	before = "before" // the place does not hear of it
	after  = "after"  // the place has done it
)

// mortal is a process's way to a place. When the process dies its calls end where they are, and it never hears an answer.
type mortal struct {
	*servertest.Place

	ends   func(servertest.Call) string // passes, before or after
	caught chan servertest.Call
	dead   chan struct{}
}

func newMortal(p *servertest.Place, ends func(servertest.Call) string) *mortal {
	return &mortal{Place: p, ends: ends, caught: make(chan servertest.Call, 100), dead: make(chan struct{})}
}

func (m *mortal) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	c := servertest.Call{Action: "apply", Resource: obj.Resource, Key: obj.Key, Spec: string(obj.Spec), Revision: obj.Revision, Term: obj.Term}
	return m.pass(ctx, c, func() driver.Outcome { return m.Place.Apply(ctx, obj) })
}

func (m *mortal) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	c := servertest.Call{Action: "delete", Resource: ref.Resource, Key: ref.Key, Revision: ref.Revision, Term: ref.Term}
	return m.pass(ctx, c, func() driver.Outcome { return m.Place.Delete(ctx, ref) })
}

func (m *mortal) pass(ctx context.Context, c servertest.Call, do func() driver.Outcome) driver.Outcome {
	select {
	case <-m.dead: // a dead process calls nobody
		return m.hang(ctx)
	default:
	}
	switch m.ends(c) {
	case passes:
		return do()
	case after:
		do()
	}
	m.caught <- c
	return m.hang(ctx)
}

func (*mortal) hang(ctx context.Context) driver.Outcome {
	<-ctx.Done()
	return driver.Backoff(ctx.Err())
}

// victim is a process that a test kills: it reaches the database under a role of its own.
type victim struct {
	w       *servertest.World
	role    string
	driver  *mortal
	process *servertest.Process
}

func startVictim(w *servertest.World, m *mortal, others ...servertest.Target) *victim {
	w.T.Helper()
	v := &victim{w: w, role: w.DB.Role(w.T, "victim", "SUPERUSER"), driver: m}
	v.process = w.StartWith(func(c *config.Config) {
		c.DatabaseURL, c.DirectURL = config.NewURL(w.DB.URLFor(v.role)), config.NewURL(w.DB.URLFor(v.role))
		c.ShutdownTimeout = 100 * time.Millisecond
	}, append(others, servertest.Named("eu", m, func(c *config.Target) { c.Concurrency = 20 }))...)
	return v
}

// catches waits until n calls hang.
func (v *victim) catches(n int) {
	v.w.T.Helper()
	for range n {
		select {
		case <-v.driver.caught:
		case <-time.After(servertest.Deadline):
			require.FailNow(v.w.T, "no call came")
		}
	}
}

// kill ends the process as far as anybody can see: no call, no statement, and its leases have run out.
func (v *victim) kill() {
	v.w.T.Helper()
	close(v.driver.dead)
	v.w.DB.Exec(v.w.T, `ALTER ROLE `+v.role+` NOLOGIN`)
	// All at once, and those that were about to begin: one that is left could take back a lease.
	v.w.Eventually("its sessions have ended", func() bool {
		return v.w.Text(`SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE usename = $1`, v.role) == "0"
	})
	v.process.Cancel()
	for range v.process.Done {
		continue
	}
	v.w.DB.Exec(v.w.T, `UPDATE reconciler.targets SET owner = NULL, clean = false`)
	v.w.DB.Exec(v.w.T, `UPDATE reconciler.leases SET owner = NULL`)
	v.w.DB.Exec(v.w.T, `DELETE FROM reconciler.instances`)
}

// C33, C74, I1, I7: a process dies before a call, or between call and ledger write. Whatever happens to the row until the
// next one starts, in the end the target is as the rows ask.
func TestProcessThatDiesAroundACall(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 5)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	// One call hangs for each object; rows 1 to 5 are "v1" in the target before.
	ends := map[string]string{"1": before, "2": before, "3": after, "4": after, "5": after, "6": after, "7": after, "8": after, "9": after}
	armed := make(chan struct{})
	v := startVictim(w, newMortal(eu, func(c servertest.Call) string {
		select {
		case <-armed:
			return ends[c.Key]
		default:
			return passes
		}
	}), servertest.Named("us", us))
	w.DB.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1')`)
	w.Converged()
	close(armed)
	for _, sql := range []string{
		`UPDATE apps SET image = 'v2' WHERE id IN (1, 3, 4, 5)`,
		`DELETE FROM apps WHERE id IN (2, 9)`,
		`INSERT INTO apps SELECT id, 'eu', 'new' FROM generate_series(6, 8) AS id`,
	} {
		w.DB.Exec(t, sql)
	}
	v.catches(9)
	v.kill()
	for _, sql := range []string{
		`UPDATE apps SET image = 'v1' WHERE id = 4`,
		`DELETE FROM apps WHERE id IN (5, 6)`,
		`UPDATE apps SET running = false WHERE id = 7`,
		`UPDATE apps SET region = 'us' WHERE id = 8`,
		`INSERT INTO apps VALUES (9, 'eu', 'v1')`,
	} {
		w.DB.Exec(t, sql)
	}
	w.Start(servertest.Named("eu", eu, servertest.Quick), servertest.Named("us", us, servertest.Quick))
	w.Eventually("the target is as the rows ask", func() bool { return maps.Equal(w.Wanted("eu"), eu.Have()) })
	w.Settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.Converged()
	require.Equal(t, map[string]string{"app/1": `"v2"`, "app/3": `"v2"`, "app/4": `"v1"`, "app/9": `"v1"`}, eu.Have())
	require.Equal(t, map[string]string{"app/8": `"new"`}, us.Have())
}

// C33, C47: what a former owner had in hand is due at once, and its events are read again: two looks at each object. The guard
// counts its delete once, and does not hold what is deleted already.
func TestDeletesAfterATakeoverCountOnce(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 0)
	eu := servertest.NewPlace()
	v := startVictim(w, newMortal(eu, func(servertest.Call) string { return after }))
	w.Wait()
	w.DB.Exec(t, `INSERT INTO apps SELECT id, 'eu', 'new' FROM generate_series(1, 4) AS id`)
	v.catches(4)
	v.kill()
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Start(servertest.Named("eu", eu, servertest.Quick, func(c *config.Target) { c.Guard.MaxDeletes, c.Guard.MaxFraction = new(4), new(1.0) }))
	eu.Eventually(t, map[string]string{})
	w.Settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.Converged()
	require.Empty(t, w.Logged("deletes_held"))
}

// C47: a later event of an object whose delete is in flight does not make the guard count it again, nor say that it holds it.
func TestDeletesInFlightHavePassedTheGuard(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 4)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency, c.Guard.MaxDeletes, c.Guard.MaxFraction = 10, new(4), new(1.0) }))
	eu.Eventually(t, want)
	w.Converged()
	g := eu.Shut(t, func(c servertest.Call) bool { return c.Action == "delete" })
	w.DB.Exec(t, `DELETE FROM apps`)
	for range 4 {
		g.Next(t)
	}
	w.DB.Exec(t, `INSERT INTO apps SELECT id, 'eu', 'later' FROM generate_series(1, 5) AS id; DELETE FROM apps WHERE id < 5`)
	w.Eventually("the events have been read", func() bool { return eu.Have()["app/5"] == `"later"` })
	g.Lift()
	eu.Eventually(t, map[string]string{"app/5": `"later"`})
	w.Converged()
	require.Empty(t, w.Logged("deletes_held"))
}

// C33: a process dies after the ledger knows of everything: nothing is called again that need not be.
func TestProcessThatDiesIdle(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 20)
	eu := servertest.NewPlace()
	v := startVictim(w, newMortal(eu, func(servertest.Call) string { return passes }))
	eu.Eventually(t, want)
	w.Converged()
	w.Seen("eu")
	v.kill()
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 7`)
	want["app/7"] = `"v2"`
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, want)
	w.Settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.Converged()
}

// C35, I10: who was deposed during a call records nothing.
func TestResultOfADeposedOwnerIsRefused(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, want)
	w.Wait()
	before := w.Text(`SELECT l::text FROM reconciler.ledger l`)
	cursor := w.Text(`SELECT revision::text FROM reconciler.target_cursors`)
	g := eu.Shut(t, nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	g.Next(t)
	w.DB.Exec(t, `UPDATE reconciler.targets SET term = term + 1, owner = '00000000-0000-0000-0000-000000000009', lease_ttl = '1 hour'`)
	g.Lift()
	w.Eventually("its result is refused", func() bool {
		return len(w.Logged("target 1 was taken over by another process: term 1 is over")) > 0 || len(w.Logged("run_ended_after_loss")) > 0
	})
	require.Equal(t, before, w.Text(`SELECT l::text FROM reconciler.ledger l`))
	require.Equal(t, cursor, w.Text(`SELECT revision::text FROM reconciler.target_cursors`))
	w.DB.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false`)
	want["app/1"] = `"v2"`
	eu.Eventually(t, want)
	w.Converged()
}

// C74, I1: the row of an object that a sync applied vanishes by TRUNCATE, which names no object. That its owner died
// before it could write the result down leaves no orphan: the object was recorded before its call.
func TestTruncatedRowsOfADeadSyncLeaveNoOrphan(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	eu := servertest.NewPlace()
	v := startVictim(w, newMortal(eu, func(servertest.Call) string { return after }))
	v.catches(3)
	v.kill()
	require.Equal(t, 3, eu.Size())
	w.DB.Exec(t, `TRUNCATE apps`)
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, map[string]string{})
	w.Wait()
}
