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

// mortal is a process's way to a place. When the process dies its calls end where they are: before the place hears of
// them, or after it has done them; the process never hears an answer.
type mortal struct {
	*place

	at     string // before or after: where calls end
	is     func(call) bool
	caught chan call
	dead   chan struct{}
}

func newMortal(p *place, at string, is func(call) bool) *mortal {
	return &mortal{place: p, at: at, is: is, caught: make(chan call, 100), dead: make(chan struct{})}
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
	if !m.is(c) {
		return do()
	}
	if m.at == "after" {
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
	}, append(others, named("eu", m))...)
	return v
}

// kill ends the process as far as anybody can see: no call, no statement, and its leases have run out.
func (v *victim) kill() {
	v.w.t.Helper()
	close(v.driver.dead)
	v.w.db.Exec(v.w.t, `ALTER ROLE `+v.role+` NOLOGIN`)
	v.w.db.Exec(v.w.t, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1`, v.role)
	v.w.db.Exec(v.w.t, `UPDATE reconciler.targets SET owner = NULL, clean = false WHERE owner IS NOT NULL`)
	v.w.db.Exec(v.w.t, `UPDATE reconciler.leases SET owner = NULL`)
	v.w.db.Exec(v.w.t, `DELETE FROM reconciler.instances`)
	v.process.cancel() // it can do no harm any more
	// At the end of the test it may find that out, so that nobody has to wait for it.
	v.w.t.Cleanup(func() { v.w.retry(`ALTER ROLE ` + v.role + ` LOGIN`) })
}

// quick is for targets that are taken over: the first sync waits until the last call of the former owner must have ended.
func quick(c *config.Target) { c.Timeout = 500 * time.Millisecond }

// C33, C74, I1, I7: a process dies before a call, or between call and ledger write. Whatever happens to the row until the
// next one starts, in the end the target is as the rows ask.
func TestProcessThatDiesAroundACall(t *testing.T) {
	t.Parallel()
	// Each begins with app/1 as "v1" in the target, and dies while it works on what doing says.
	const change, insert, remove = `UPDATE apps SET image = 'v2' WHERE id = 1`, `INSERT INTO apps VALUES (9, 'eu', 'new')`, `DELETE FROM apps WHERE id = 1`
	for name, c := range map[string]struct{ at, doing, then string }{
		"BeforeAnApply":                        {"before", change, ``},
		"BeforeADelete":                        {"before", remove, ``},
		"AfterAnApply":                         {"after", change, ``},
		"AfterAnApplyAndTheRowIsAsBefore":      {"after", change, `UPDATE apps SET image = 'v1' WHERE id = 1`},
		"AfterAnApplyAndTheRowGoes":            {"after", change, `DELETE FROM apps WHERE id = 1`},
		"AfterTheFirstApplyAndTheRowGoes":      {"after", insert, `DELETE FROM apps WHERE id = 9`},
		"AfterTheFirstApplyAndTheRowIsStopped": {"after", insert, `UPDATE apps SET running = false WHERE id = 9`},
		"AfterTheFirstApplyAndTheRowMoves":     {"after", insert, `UPDATE apps SET region = 'us' WHERE id = 9`},
		"AfterADeleteAndTheRowIsBack":          {"after", remove, `INSERT INTO apps VALUES (1, 'eu', 'v1')`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.fleet(3)
			eu, us := newPlace(), newPlace()
			armed := make(chan struct{})
			v := w.startVictim(newMortal(eu, c.at, func(call) bool {
				select {
				case <-armed:
					return true
				default:
					return false
				}
			}), named("us", us))
			w.converged()
			close(armed)
			w.db.Exec(t, c.doing)
			select {
			case <-v.driver.caught:
			case <-time.After(deadline):
				require.FailNow(t, "no call came")
			}
			v.kill()
			if c.then != "" {
				w.db.Exec(t, c.then)
			}
			w.start(named("eu", eu, quick), named("us", us, quick))
			w.eventually("the target is as the rows ask", func() bool { return maps.Equal(w.wanted("eu"), eu.have()) })
			w.eventually("it is clean", func() bool { return w.text(`SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`) == "true" })
			w.converged()
		})
	}
}

// C33: a process dies after the ledger knows of everything: nothing is called again that need not be.
func TestProcessThatDiesIdle(t *testing.T) {
	t.Parallel()
	w := setup(t)
	want := w.fleet(20)
	eu := newPlace()
	v := w.startVictim(newMortal(eu, "before", func(call) bool { return false }))
	eu.eventually(t, want)
	w.converged()
	w.seen("eu")
	v.kill()
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 7`)
	want["app/7"] = `"v2"`
	w.start(named("eu", eu, quick))
	eu.eventually(t, want)
	w.eventually("it is clean", func() bool { return w.text(`SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`) == "true" })
	w.converged()
}

// C35, I10: who was deposed during a call records nothing.
func TestResultOfADeposedOwnerIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	want := w.fleet(1)
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
	w := setup(t)
	w.fleet(3)
	eu := newPlace()
	m := newMortal(eu, "after", func(call) bool { return true })
	v := w.startVictim(m)
	for range 3 {
		<-m.caught
	}
	v.kill()
	require.Equal(t, 3, eu.size())
	w.db.Exec(t, `TRUNCATE apps`)
	w.start(named("eu", eu))
	eu.eventually(t, map[string]string{})
	w.wait()
}
