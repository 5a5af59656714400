package server_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// Where a call ends when its process dies.
const (
	passes = ""
	before = "before" // the place does not hear of it
	after  = "after"  // the place has done it
)

// mortal is a process's way to a place. When the process dies its calls end where they are, and it never hears an answer.
type mortal struct {
	*place

	ends   func(call) string // passes, before or after
	caught chan call
	dead   chan struct{}
}

func newMortal(p *place, ends func(call) string) *mortal {
	return &mortal{place: p, ends: ends, caught: make(chan call, 100), dead: make(chan struct{})}
}

func (m *mortal) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	c := call{"apply", obj.Resource, obj.Key, string(obj.Spec), obj.Revision, obj.Term}
	return m.pass(ctx, c, func() driver.Outcome { return m.place.Apply(ctx, obj) })
}

func (m *mortal) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	c := call{"delete", ref.Resource, ref.Key, "", ref.Revision, ref.Term}
	return m.pass(ctx, c, func() driver.Outcome { return m.place.Delete(ctx, ref) })
}

func (m *mortal) pass(ctx context.Context, c call, do func() driver.Outcome) driver.Outcome {
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
	w       *world
	role    string
	driver  *mortal
	process *process
}

func (w *world) startVictim(m *mortal, others ...target) *victim {
	w.t.Helper()
	v := &victim{w: w, role: w.db.Role(w.t, "victim", "SUPERUSER"), driver: m}
	v.process = w.startWith(func(c *config.Config) {
		c.DatabaseURL, c.DirectURL = config.NewURL(w.db.URLFor(v.role)), config.NewURL(w.db.URLFor(v.role))
		c.ShutdownTimeout = 100 * time.Millisecond
	}, append(others, named("eu", m, func(c *config.Target) { c.Concurrency = 20 }))...)
	return v
}

// catches waits until n calls hang.
func (v *victim) catches(n int) {
	v.w.t.Helper()
	for range n {
		select {
		case <-v.driver.caught:
		case <-time.After(deadline):
			require.FailNow(v.w.t, "no call came")
		}
	}
}

// kill ends the process as far as anybody can see: no call, no statement, and its leases have run out.
func (v *victim) kill() {
	v.w.t.Helper()
	close(v.driver.dead)
	v.w.db.Exec(v.w.t, `ALTER ROLE `+v.role+` NOLOGIN`)
	// All at once, and those that were about to begin: one that is left could take back a lease.
	v.w.eventually("its sessions have ended", func() bool {
		return v.w.text(`SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE usename = $1`, v.role) == "0"
	})
	v.process.cancel()
	for range v.process.done {
		continue
	}
	v.w.db.Exec(v.w.t, `UPDATE reconciler.targets SET owner = NULL, clean = false`)
	v.w.db.Exec(v.w.t, `UPDATE reconciler.leases SET owner = NULL`)
	v.w.db.Exec(v.w.t, `DELETE FROM reconciler.instances`)
}

// quick is for targets that are taken over: the first sync waits until the last call of the former owner must have ended.
func quick(c *config.Target) { c.Timeout = 500 * time.Millisecond }

// C33, C74, I1, I7: a process dies before a call, or between call and ledger write. Whatever happens to the row until the
// next one starts, in the end the target is as the rows ask.
func TestProcessThatDiesAroundACall(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 5)
	eu, us := newPlace(), newPlace()
	// One call hangs for each object; rows 1 to 5 are "v1" in the target before.
	ends := map[string]string{"1": before, "2": before, "3": after, "4": after, "5": after, "6": after, "7": after, "8": after, "9": after}
	armed := make(chan struct{})
	v := w.startVictim(newMortal(eu, func(c call) string {
		select {
		case <-armed:
			return ends[c.Key]
		default:
			return passes
		}
	}), named("us", us))
	w.db.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1')`)
	w.converged()
	close(armed)
	for _, sql := range []string{
		`UPDATE apps SET image = 'v2' WHERE id IN (1, 3, 4, 5)`,
		`DELETE FROM apps WHERE id IN (2, 9)`,
		`INSERT INTO apps SELECT id, 'eu', 'new' FROM generate_series(6, 8) AS id`,
	} {
		w.db.Exec(t, sql)
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
		w.db.Exec(t, sql)
	}
	w.start(named("eu", eu, quick), named("us", us, quick))
	w.eventually("the target is as the rows ask", func() bool { return maps.Equal(w.wanted("eu"), eu.have()) })
	w.settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.converged()
	require.Equal(t, map[string]string{"app/1": `"v2"`, "app/3": `"v2"`, "app/4": `"v1"`, "app/9": `"v1"`}, eu.have())
	require.Equal(t, map[string]string{"app/8": `"new"`}, us.have())
}

// C33, C47: what a former owner had in hand is due at once, and its events are read again: two looks at each object. The guard
// counts its delete once, and does not hold what is deleted already.
func TestDeletesAfterATakeoverCountOnce(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 0)
	eu := newPlace()
	v := w.startVictim(newMortal(eu, func(call) string { return after }))
	w.wait()
	w.db.Exec(t, `INSERT INTO apps SELECT id, 'eu', 'new' FROM generate_series(1, 4) AS id`)
	v.catches(4)
	v.kill()
	w.db.Exec(t, `DELETE FROM apps`)
	w.start(named("eu", eu, quick, func(c *config.Target) { c.Guard.MaxDeletes, c.Guard.MaxFraction = new(4), new(1.0) }))
	eu.eventually(t, map[string]string{})
	w.settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.converged()
	require.Empty(t, w.logged("deletes_held"))
}

// C47: a later event of an object whose delete is in flight does not make the guard count it again, nor say that it holds it.
func TestDeletesInFlightHavePassedTheGuard(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 4)
	eu := newPlace()
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency, c.Guard.MaxDeletes, c.Guard.MaxFraction = 10, new(4), new(1.0) }))
	eu.eventually(t, want)
	w.converged()
	g := eu.shut(t, func(c call) bool { return c.Action == "delete" })
	w.db.Exec(t, `DELETE FROM apps`)
	for range 4 {
		g.next(t)
	}
	w.db.Exec(t, `INSERT INTO apps SELECT id, 'eu', 'later' FROM generate_series(1, 5) AS id; DELETE FROM apps WHERE id < 5`)
	w.eventually("the events have been read", func() bool { return eu.have()["app/5"] == `"later"` })
	g.lift()
	eu.eventually(t, map[string]string{"app/5": `"later"`})
	w.converged()
	require.Empty(t, w.logged("deletes_held"))
}

// C33: a process dies after the ledger knows of everything: nothing is called again that need not be.
func TestProcessThatDiesIdle(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 20)
	eu := newPlace()
	v := w.startVictim(newMortal(eu, func(call) string { return passes }))
	eu.eventually(t, want)
	w.converged()
	w.seen("eu")
	v.kill()
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 7`)
	want["app/7"] = `"v2"`
	w.start(named("eu", eu, quick))
	eu.eventually(t, want)
	w.settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.converged()
}

// C35, I10: who was deposed during a call records nothing.
func TestResultOfADeposedOwnerIsRefused(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 1)
	eu := newPlace()
	w.start(named("eu", eu, quick))
	eu.eventually(t, want)
	w.wait()
	before := w.text(`SELECT l::text FROM reconciler.ledger l`)
	cursor := w.text(`SELECT revision::text FROM reconciler.target_cursors`)
	g := eu.shut(t, nil)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	g.next(t)
	w.db.Exec(t, `UPDATE reconciler.targets SET term = term + 1, owner = '00000000-0000-0000-0000-000000000009', lease_ttl = '1 hour'`)
	g.lift()
	w.eventually("its result is refused", func() bool {
		return len(w.logged("target 1 was taken over by another process: term 1 is over")) > 0 || len(w.logged("run_ended_after_loss")) > 0
	})
	require.Equal(t, before, w.text(`SELECT l::text FROM reconciler.ledger l`))
	require.Equal(t, cursor, w.text(`SELECT revision::text FROM reconciler.target_cursors`))
	w.db.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false`)
	want["app/1"] = `"v2"`
	eu.eventually(t, want)
	w.converged()
}

// C74, I1: the row of an object that a sync applied vanishes by TRUNCATE, which names no object. That its owner died
// before it could write the result down leaves no orphan: the object was recorded before its call.
func TestTruncatedRowsOfADeadSyncLeaveNoOrphan(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 3)
	eu := newPlace()
	v := w.startVictim(newMortal(eu, func(call) string { return after }))
	v.catches(3)
	v.kill()
	require.Equal(t, 3, eu.size())
	w.db.Exec(t, `TRUNCATE apps`)
	w.start(named("eu", eu, quick))
	eu.eventually(t, map[string]string{})
	w.wait()
}
