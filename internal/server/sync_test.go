package server_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// silently runs SQL with capture switched off, as a restore or a replica does.
func (w *world) silently(sql string) {
	w.t.Helper()
	conn := w.db.Conn(w.t)
	for _, one := range []string{"SET session_replication_role = replica", sql} {
		_, err := conn.Exec(context.Background(), one)
		require.NoError(w.t, err)
	}
}

func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	var text *string
	err := w.db.Pool.QueryRow(context.Background(), sql, args...).Scan(&text)
	if !errors.Is(err, pgx.ErrNoRows) {
		require.NoError(w.t, err)
	}
	return deref(text)
}

// settled waits until a query gives a text.
func (w *world) settled(want, sql string, args ...any) {
	w.t.Helper()
	require.NoError(w.t, pgtest.Poll(context.Background(), deadline, func() error {
		if have := w.text(sql, args...); have != want {
			return fmt.Errorf("%s\nwant %s\nhave %s", sql, want, have)
		}
		return nil
	}))
}

const lastSync = `SELECT state || ' ' || reason || ' rows=' || rows || ' upserts=' || upserts || ' tombstones=' || tombstones || ' drifted=' || drifted || ' held=' || held
FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`

// resync asks for a full sync and waits for its end.
func (w *world) resync(want string) {
	w.t.Helper()
	w.db.Exec(w.t, `SELECT reconciler.resync('eu')`)
	w.settled(want, lastSync)
}

// C40, I1: what capture could not see is found by the sync.
func TestSyncFindsWhatTriggersMissed(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 20)
	eu := newPlace()
	w.start(named("eu", listing{eu}))
	eu.eventually(t, want)
	w.wait()

	w.silently(`DELETE FROM apps WHERE id = 1; INSERT INTO apps VALUES (21, 'eu', 'v1'); UPDATE apps SET image = 'v2' WHERE id = 2`)
	delete(want, "app/1")
	want["app/21"], want["app/2"] = `"v1"`, `"v2"`
	w.resync("complete resync rows=20 upserts=2 tombstones=1 drifted=0 held=0")
	eu.eventually(t, want)
	w.wait()
}

// C41: only running rows; a target without rows gets a complete sync too. C8: rows that never ran cause no call.
func TestSyncAppliesRunningRowsOnly(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 3)
	w.db.Exec(t, `UPDATE apps SET running = false WHERE id > 1`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	eu.eventually(t, map[string]string{"app/1": `"v1"`})
	w.wait()
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
	w.wait()
	_, calls, _ := eu.snapshot()
	require.Len(t, calls, 1)
	require.Equal(t, "complete first rows=0", w.text(`SELECT r.state || ' ' || reason || ' rows=' || rows FROM reconciler.sync_runs r JOIN reconciler.targets t ON t.id = r.target_id WHERE t.name = 'us'`))
}

// C50: an in-sync run calls no driver and writes nothing to the ledger.
func TestSyncOfWhatIsInSyncTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]func(*place) driver.Driver{
		"WithListing": func(p *place) driver.Driver { return listing{p} }, "Without": func(p *place) driver.Driver { return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 50)
			eu := newPlace()
			w.start(named("eu", drv(eu)))
			eu.eventually(t, want)
			w.wait()
			_, before, _ := eu.snapshot()
			versions := w.text(`SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY key)) FROM reconciler.ledger`)
			// As at an interval: compare, no forced call.
			w.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, verify) SELECT id, 'interval', $1 FROM reconciler.targets WHERE name = 'eu'`, name == "WithListing")
			w.db.Exec(t, `NOTIFY reconciler_control`)
			w.settled("complete interval rows=50 upserts=0 tombstones=0 drifted=0 held=0", lastSync)
			_, after, _ := eu.snapshot()
			require.Len(t, after, len(before))
			require.Equal(t, versions, w.text(`SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY key)) FROM reconciler.ledger`))
		})
	}
}

// A target that cannot list is called for every object by a verifying sync.
func TestVerifyingSyncCallsForEverythingWhereTheTargetCannotList(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 10)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	eu.put("app/3", `"tampered"`)
	w.resync("complete resync rows=10 upserts=10 tombstones=0 drifted=0 held=0")
	eu.eventually(t, want)
}

// C49: drift in the target is repaired, or only reported.
func TestDriftIsRepairedOrReported(t *testing.T) {
	t.Parallel()
	tamper := func(p *place) {
		p.put("app/1", `"edited by hand"`)
		p.put("app/2", "")
		p.put("app/stray", `"nobody wants me"`)
	}
	const run = "complete resync rows=5 upserts=0 tombstones=0 drifted=3 held=0"
	t.Run("Repair", func(t *testing.T) {
		t.Parallel()
		w, want := fleet(t, 5)
		eu := newPlace()
		w.start(named("eu", listing{eu}))
		eu.eventually(t, want)
		w.wait()
		tamper(eu)
		w.resync(run)
		eu.eventually(t, want)
	})
	t.Run("Report", func(t *testing.T) {
		t.Parallel()
		w, want := fleet(t, 5)
		eu := newPlace()
		w.start(named("eu", listing{eu}, func(c *config.Target) { c.SyncMode = config.SyncReport }))
		w.seen("eu")
		w.db.Exec(t, `SELECT reconciler.resync('eu')`)
		eu.eventually(t, want)
		w.wait()
		tamper(eu)
		tampered, before, _ := eu.snapshot()
		w.db.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, mode, verify) SELECT id, 'resync', 'report', true FROM reconciler.targets WHERE name = 'eu'`)
		w.db.Exec(t, `NOTIFY reconciler_control`)
		w.settled(run, lastSync)
		have, after, _ := eu.snapshot()
		require.Equal(t, tampered, have)
		require.Len(t, after, len(before))
		require.Equal(t, "1 different, 2 missing, stray orphan", w.text(`SELECT string_agg(key || ' ' || kind, ', ' ORDER BY key) FROM reconciler.drift_found`))
	})
}

// slow is a place whose listing ends when it is told to: what it has yielded may be gone by then.
type slow struct {
	listing

	began, end chan struct{}
}

func (l *slow) List(ctx context.Context, resource string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		for one, err := range l.listing.List(ctx, resource) {
			if !yield(one, err) {
				return
			}
		}
		l.began <- struct{}{}
		<-l.end
	}
}

// An object that an ordinary delete removes between the listing and the look at the ledger is no orphan; one that the
// target still has is.
func TestF97_ADeleteDuringTheListingIsNoDrift(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 5)
	eu := &slow{listing: listing{newPlace()}, began: make(chan struct{}, 100), end: make(chan struct{}, 100)}
	eu.end <- struct{}{} // of the first sync
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	<-eu.began
	w.settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state <> 'complete'`)

	eu.put("app/stray", `"nobody wants me"`)
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	<-eu.began
	w.db.Exec(t, `DELETE FROM apps WHERE id IN (2, 4)`)
	delete(want, "app/2")
	delete(want, "app/4")
	w.settled("3", `SELECT count(*)::text FROM reconciler.ledger`)
	close(eu.end)
	w.settled("complete resync rows=3 upserts=0 tombstones=0 drifted=1 held=0", lastSync)
	eu.eventually(t, want)
}

// flaky is a target whose listing breaks off.
type flaky struct {
	*place

	broken atomic.Bool
}

func (f *flaky) List(_ context.Context, resource string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		if !yield(driver.Listed{Resource: resource, Key: "stray"}, nil) {
			return
		}
		if f.broken.Load() {
			yield(driver.Listed{}, fmt.Errorf("the disk is on fire"))
		}
	}
}

// C45, I5: a sync that breaks off deletes nothing.
func TestFailedSyncDeletesNothing(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 5)
	eu := &flaky{place: newPlace()}
	eu.broken.Store(true)
	eu.put("app/stray", `"x"`)
	want["app/stray"] = `"x"`
	w.start(named("eu", eu))
	w.settled("failed list what target eu has of resource app: the disk is on fire", `SELECT state || ' ' || error FROM reconciler.sync_runs WHERE state = 'failed' ORDER BY id DESC LIMIT 1`)
	have, calls, _ := eu.snapshot()
	for _, c := range calls {
		require.Equal(t, "apply", c.Action)
	}
	require.Contains(t, have, "app/stray")
}

// A sync that was asked for and failed has not been made: wait() goes on, and says why, until it has been. It is tried
// again by itself after a pause, or at once when somebody asks for it again.
func TestWaitGoesOnUntilAFailedSyncIsMadeGood(t *testing.T) {
	t.Parallel()
	for name, mend := range map[string][]string{"ByItself": nil, "OnRequest": {`SELECT reconciler.resync('eu')`}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 5)
			eu := &flaky{place: newPlace()}
			w.start(named("eu", eu))
			eu.eventually(t, want)
			w.wait()
			w.silently(`UPDATE apps SET image = 'silent' WHERE id = 1`)
			eu.broken.Store(true)
			if mend != nil { // so that it is not made by itself first
				w.db.Exec(t, `CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.not_before := NEW.not_before + interval '1 hour'; RETURN NEW; END $$;
					CREATE TRIGGER later BEFORE INSERT ON reconciler.sync_runs FOR EACH ROW EXECUTE FUNCTION later()`)
			}
			w.db.Exec(t, `SELECT reconciler.resync('eu')`)
			w.settled("failed", `SELECT state FROM reconciler.syncs WHERE reason = 'resync' ORDER BY id LIMIT 1`)
			require.Equal(t, []string{"eu syncing resync sync is requested again; it failed: list what target eu has of resource app: the disk is on fire true"},
				w.column(`SELECT concat_ws(' ', target, state, reason, timed_out::text) FROM reconciler.wait('10ms')`))
			require.Regexp(t, `^resync sync requested by \S+ at .+, again at .+$`, w.text(`SELECT sync FROM reconciler.status`))

			eu.broken.Store(false)
			for _, sql := range mend {
				w.db.Exec(t, sql)
			}
			w.wait()
			want["app/1"] = `"silent"`
			have, _, _ := eu.snapshot()
			require.Equal(t, want, have)
			require.Equal(t, "failed, complete", w.text(`SELECT string_agg(state, ', ' ORDER BY id) FROM reconciler.syncs WHERE reason = 'resync'`))
		})
	}
}

// C47, I6: more deletes than the guard allows are held, whichever way they come.
func TestGuardHoldsMassDeletes(t *testing.T) {
	t.Parallel()
	const held = `SELECT guard FROM reconciler.status WHERE target = 'eu'`
	ways := map[string]func(w *world){
		"Live":     func(w *world) { w.db.Exec(w.t, `DELETE FROM apps WHERE id <= 21`) },
		"Truncate": func(w *world) { w.db.Exec(w.t, `TRUNCATE apps`) },
		"Silent": func(w *world) {
			w.silently(`DELETE FROM apps WHERE id <= 21`)
			w.db.Exec(w.t, `SELECT reconciler.resync('eu')`)
		},
		"OneByOne": func(w *world) {
			w.db.Exec(w.t, `UPDATE apps SET running = false WHERE id <= 21`)
		},
	}
	for name, remove := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 100)
			eu := newPlace()
			w.start(named("eu", eu, func(c *config.Target) { f := 0.2; c.Guard.MaxFraction = &f }))
			eu.eventually(t, want)
			w.wait()
			remove(w)
			gone := 21
			if name == "Truncate" {
				gone = 100
			}
			w.settled(fmt.Sprint(gone), `SELECT count(*)::text FROM reconciler.objects WHERE state = 'held' AND held_by = 'guard'`)
			have, _, _ := eu.snapshot()
			require.Equal(t, want, have, "nothing is deleted")
			require.True(t, strings.HasPrefix(w.text(held), fmt.Sprintf("%d deletes", gone)), w.text(held))

			w.db.Exec(t, `SELECT reconciler.approve('eu')`)
			for i := 1; i <= gone; i++ {
				delete(want, fmt.Sprintf("app/%d", i))
			}
			eu.eventually(t, want)
			w.wait()
			require.Empty(t, w.text(held))
			require.Equal(t, fmt.Sprint(len(want)), w.text(`SELECT count(*)::text FROM reconciler.ledger`), "I7: a ledger row leaves when the object is gone")
		})
	}
}

// I6, F11: deletes that a former owner's guard let pass within the window count for the next one.
func TestF11_GuardCountsOnAfterARestart(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 20)
	eu := newPlace()
	limited := func(c *config.Target) { quick(c); c.Guard.MaxDeletes, c.Guard.Window = new(5), time.Hour }
	for restarts := range 3 {
		p := w.start(named("eu", eu, limited))
		w.converged()
		w.db.Exec(t, `DELETE FROM apps WHERE id <= $1`, min(5, 2*(restarts+1)))
		w.converged()
		p.stop(t)
	}
	w.start(named("eu", eu, limited))
	w.db.Exec(t, `DELETE FROM apps WHERE id <= 6`)
	w.settled("1", `SELECT held::text FROM reconciler.status WHERE target = 'eu'`)
	require.Len(t, eu.have(), 15)
	w.db.Exec(t, `SELECT reconciler.approve('eu')`)
	w.converged()
}

// C47: the rows come back, and the hold is over without a call.
func TestGuardLetsGoWhenTheRowsComeBack(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 100)
	eu := newPlace()
	w.start(named("eu", eu))
	eu.eventually(t, want)
	w.wait()
	_, before, _ := eu.snapshot()
	w.db.Exec(t, `CREATE TABLE saved AS TABLE apps; TRUNCATE apps`)
	w.settled("100", `SELECT count(*)::text FROM reconciler.objects WHERE held_by = 'guard'`)
	w.db.Exec(t, `INSERT INTO apps TABLE saved`)
	w.wait()
	have, after, _ := eu.snapshot()
	require.Equal(t, want, have)
	require.Len(t, after, len(before))
	w.settled("", `SELECT guard FROM reconciler.status WHERE target = 'eu'`)
	// A single delete passes again.
	w.db.Exec(t, `DELETE FROM apps WHERE id = 1`)
	delete(want, "app/1")
	eu.eventually(t, want)
}

// C42: rows that change, move and vanish while pages are read end right.
func TestSyncOfAMovingTableEndsRight(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 3000)
	eu, us := newPlace(), newPlace()
	n := 0
	begun := make(chan struct{})
	eu.set(func(context.Context, call) driver.Outcome {
		if n++; n == 100 {
			close(begun)
		}
		return driver.Done()
	})
	w.start(named("eu", eu, func(c *config.Target) { c.Concurrency = 1; m := 1.0; c.Guard.MaxFraction = &m }), named("us", us))
	<-begun
	w.db.Exec(t, `UPDATE apps SET region = 'us' WHERE id % 10 = 0`)
	w.db.Exec(t, `DELETE FROM apps WHERE id % 10 = 1`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id % 10 = 2`)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'new' FROM generate_series(5001, 5010) AS i`)
	w.db.Exec(t, `UPDATE apps SET id = id + 10000 WHERE id % 10 = 3`)
	w.wait()
	for region, p := range map[string]*place{"eu": eu, "us": us} {
		rows, err := w.db.Pool.Query(context.Background(), `SELECT 'app/' || id, to_jsonb(image)::text FROM apps WHERE running AND region = $1`, region)
		require.NoError(t, err)
		want := map[string]string{}
		for rows.Next() {
			var id, spec string
			require.NoError(t, rows.Scan(&id, &spec))
			want[id] = spec
		}
		require.NoError(t, rows.Err())
		have, _, _ := p.snapshot()
		require.Equal(t, want, have)
	}
}

// C48, I11: a live change does not wait for a sync; and a live flood does not stop a sync.
func TestLiveChangesGoBeforeASync(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 2000)
	eu := newPlace()
	hold := make(chan struct{})
	started := make(chan struct{}, 2000)
	eu.set(func(ctx context.Context, c call) driver.Outcome {
		if c.Spec == `"v1"` { // calls of the sync hang
			started <- struct{}{}
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return driver.Done()
	})
	w.start(named("eu", eu))
	for range 3 { // a quarter of four workers is kept for live changes
		<-started
	}
	w.db.Exec(t, `UPDATE apps SET image = 'live' WHERE id = 2000`)
	eu.until(t, func(have map[string]string, _ []call) bool { return have["app/2000"] == `"live"` }, func() string { return "the live change waits for the sync" })
	close(hold)
	w.wait()
}

// C44: a sync that is killed between its pages deletes nothing, and the next owner's completes.
func TestKilledSyncIsTakenUp(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 200)
	eu := newPlace()
	enough := make(chan struct{})
	n := 0
	eu.set(func(ctx context.Context, _ call) driver.Outcome {
		if n++; n == 50 {
			close(enough)
			<-ctx.Done()
			return driver.Backoff(ctx.Err())
		}
		return driver.Done()
	})
	first := w.startWith(func(c *config.Config) { c.ShutdownTimeout = 100 * time.Millisecond }, named("eu", eu, func(c *config.Target) { c.Concurrency = 1 }))
	<-enough
	w.silently(`DELETE FROM apps WHERE id = 1`)
	delete(want, "app/1")
	first.cancel()
	eu.set(nil)
	w.start(named("eu", eu, quick))
	eu.eventually(t, want)
	w.wait()
}
