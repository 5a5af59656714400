package rows_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// C40, I1: what capture could not see is found by the sync.
func TestSyncFindsWhatTriggersMissed(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 20)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
	eu.Eventually(t, want)
	w.Wait()

	w.Silently(`DELETE FROM apps WHERE id = 1; INSERT INTO apps VALUES (21, 'eu', 'v1'); UPDATE apps SET image = 'v2' WHERE id = 2`)
	delete(want, "app/1")
	want["app/21"], want["app/2"] = `"v1"`, `"v2"`
	w.Resync("complete resync rows=20 upserts=2 tombstones=1 drifted=0 held=0")
	eu.Eventually(t, want)
	w.Wait()
}

// C41: only running rows; a target without rows gets a complete sync too. C8: rows that never ran cause no call.
func TestSyncAppliesRunningRowsOnly(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	w.DB.Exec(t, `UPDATE apps SET running = false WHERE id > 1`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu), servertest.Named("us", us))
	eu.Eventually(t, map[string]string{"app/1": `"v1"`})
	w.Wait()
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 3`)
	w.Wait()
	_, calls, _ := eu.Snapshot()
	require.Len(t, calls, 1)
	require.Equal(t, "complete first rows=0", w.Text(`SELECT r.state || ' ' || reason || ' rows=' || rows FROM reconciler.sync_runs r JOIN reconciler.targets t ON t.id = r.target_id WHERE t.name = 'us'`))
}

// C50: an in-sync run calls no driver and writes nothing to the ledger.
func TestSyncOfWhatIsInSyncTouchesNothing(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]func(*servertest.Place) driver.Driver{
		"WithListing": func(p *servertest.Place) driver.Driver { return servertest.Listing{Place: p} }, "Without": func(p *servertest.Place) driver.Driver { return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 50)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", drv(eu)))
			eu.Eventually(t, want)
			w.Wait()
			_, before, _ := eu.Snapshot()
			versions := w.Text(`SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY key)) FROM reconciler.ledger`)
			// As at an interval: compare, no forced call.
			w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, verify) SELECT id, 'interval', $1 FROM reconciler.targets WHERE name = 'eu'`, name == "WithListing")
			w.DB.Exec(t, `NOTIFY reconciler_control`)
			w.Settled("complete interval rows=50 upserts=0 tombstones=0 drifted=0 held=0", servertest.LastSync)
			_, after, _ := eu.Snapshot()
			require.Len(t, after, len(before))
			require.Equal(t, versions, w.Text(`SELECT md5(string_agg(xmin::text || ctid::text, ',' ORDER BY key)) FROM reconciler.ledger`))
		})
	}
}

// A target that cannot list is called for every object by a verifying sync.
func TestVerifyingSyncCallsForEverythingWhereTheTargetCannotList(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 10)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	eu.Put("app/3", `"tampered"`)
	w.Resync("complete resync rows=10 upserts=10 tombstones=0 drifted=0 held=0")
	eu.Eventually(t, want)
}

// C49: drift in the target is repaired, or only reported.
func TestDriftIsRepairedOrReported(t *testing.T) {
	t.Parallel()
	tamper := func(p *servertest.Place) {
		p.Put("app/1", `"edited by hand"`)
		p.Put("app/2", "")
		p.Put("app/stray", `"nobody wants me"`)
	}
	const run = "complete resync rows=5 upserts=0 tombstones=0 drifted=3 held=0"
	t.Run("Repair", func(t *testing.T) {
		t.Parallel()
		w, want := servertest.Fleet(t, 5)
		eu := servertest.NewPlace()
		w.Start(servertest.Named("eu", servertest.Listing{Place: eu}))
		eu.Eventually(t, want)
		w.Wait()
		tamper(eu)
		w.Resync(run)
		eu.Eventually(t, want)
	})
	t.Run("Report", func(t *testing.T) {
		t.Parallel()
		w, want := servertest.Fleet(t, 5)
		eu := servertest.NewPlace()
		w.Start(servertest.Named("eu", servertest.Listing{Place: eu}, func(c *config.Target) { c.SyncMode = config.SyncReport }))
		w.Seen("eu")
		w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
		eu.Eventually(t, want)
		w.Wait()
		tamper(eu)
		tampered, before, _ := eu.Snapshot()
		w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, reason, mode, verify) SELECT id, 'resync', 'report', true FROM reconciler.targets WHERE name = 'eu'`)
		w.DB.Exec(t, `NOTIFY reconciler_control`)
		w.Settled(run, servertest.LastSync)
		have, after, _ := eu.Snapshot()
		require.Equal(t, tampered, have)
		require.Len(t, after, len(before))
		require.Equal(t, "1 different, 2 missing, stray orphan", w.Text(`SELECT string_agg(key || ' ' || kind, ', ' ORDER BY key) FROM reconciler.drift_found`))
	})
}

// slow is a place whose listing ends when it is told to: what it has yielded may be gone by then.
type slow struct {
	servertest.Listing

	began, end chan struct{}
}

func (l *slow) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		for one, err := range l.Listing.List(ctx, resources) {
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
	w, want := servertest.Fleet(t, 5)
	eu := &slow{Listing: servertest.Listing{Place: servertest.NewPlace()}, began: make(chan struct{}, 100), end: make(chan struct{}, 100)}
	eu.end <- struct{}{} // of the first sync
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	<-eu.began
	w.Settled("0", `SELECT count(*)::text FROM reconciler.sync_runs WHERE state <> 'complete'`)

	eu.Put("app/stray", `"nobody wants me"`)
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	<-eu.began
	w.DB.Exec(t, `DELETE FROM apps WHERE id IN (2, 4)`)
	delete(want, "app/2")
	delete(want, "app/4")
	w.Settled("3", `SELECT count(*)::text FROM reconciler.ledger`)
	close(eu.end)
	w.Settled("complete resync rows=3 upserts=0 tombstones=0 drifted=1 held=0", servertest.LastSync)
	eu.Eventually(t, want)
}

// flaky is a target whose listing breaks off.
type flaky struct {
	*servertest.Place

	broken atomic.Bool
}

func (f *flaky) List(_ context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		if !yield(driver.Listed{Resource: resources[0], Key: "stray"}, nil) {
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
	w, want := servertest.Fleet(t, 5)
	eu := &flaky{Place: servertest.NewPlace()}
	eu.broken.Store(true)
	eu.Put("app/stray", `"x"`)
	want["app/stray"] = `"x"`
	w.Start(servertest.Named("eu", eu))
	w.Settled("failed list what target eu has: the disk is on fire", `SELECT state || ' ' || error FROM reconciler.sync_runs WHERE state = 'failed' ORDER BY id DESC LIMIT 1`)
	have, calls, _ := eu.Snapshot()
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
			w, want := servertest.Fleet(t, 5)
			eu := &flaky{Place: servertest.NewPlace()}
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.Wait()
			w.Silently(`UPDATE apps SET image = 'silent' WHERE id = 1`)
			eu.broken.Store(true)
			if mend != nil { // so that it is not made by itself first
				w.DB.Exec(t, `CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
					CREATE TRIGGER later BEFORE UPDATE ON reconciler.sync_runs FOR EACH ROW WHEN (NEW.state = 'running' AND OLD.not_before IS NOT NULL) EXECUTE FUNCTION later()`)
			}
			w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
			w.Settled("failed", `SELECT state FROM reconciler.syncs WHERE reason = 'resync' ORDER BY id LIMIT 1`)
			// While it is tried again, it is running.
			w.Settled("eu syncing resync sync is requested again; it failed: list what target eu has: the disk is on fire true",
				`SELECT string_agg(concat_ws(' ', target, state, reason, timed_out::text), E'\n') FROM reconciler.wait('10ms')`)
			w.Settled("true", `SELECT (sync ~ '^resync sync requested by \S+ at .+, again at .+$')::text FROM reconciler.status`)

			eu.broken.Store(false)
			for _, sql := range mend {
				w.DB.Exec(t, sql)
			}
			w.Wait()
			want["app/1"] = `"silent"`
			have, _, _ := eu.Snapshot()
			require.Equal(t, want, have)
			require.Regexp(t, `^(failed, )+complete$`, w.Text(`SELECT string_agg(state, ', ' ORDER BY id) FROM reconciler.syncs WHERE reason = 'resync'`))
		})
	}
}

// C47, I6: more deletes than the guard allows are held, whichever way they come.
func TestGuardHoldsMassDeletes(t *testing.T) {
	t.Parallel()
	const held = `SELECT guard FROM reconciler.status WHERE target = 'eu'`
	ways := map[string]func(w *servertest.World){
		"Live":     func(w *servertest.World) { w.DB.Exec(w.T, `DELETE FROM apps WHERE id <= 21`) },
		"Truncate": func(w *servertest.World) { w.DB.Exec(w.T, `TRUNCATE apps`) },
		"Silent": func(w *servertest.World) {
			w.Silently(`DELETE FROM apps WHERE id <= 21`)
			w.DB.Exec(w.T, `SELECT reconciler.resync('eu')`)
		},
		"OneByOne": func(w *servertest.World) {
			w.DB.Exec(w.T, `UPDATE apps SET running = false WHERE id <= 21`)
		},
	}
	for name, remove := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 100)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu, func(c *config.Target) { f := 0.2; c.Guard.MaxFraction = &f }))
			eu.Eventually(t, want)
			w.Wait()
			remove(w)
			gone := 21
			if name == "Truncate" {
				gone = 100
			}
			w.Settled(fmt.Sprint(gone), `SELECT count(*)::text FROM reconciler.objects WHERE state = 'held' AND held_by = 'guard'`)
			have, _, _ := eu.Snapshot()
			require.Equal(t, want, have, "nothing is deleted")
			require.True(t, strings.HasPrefix(w.Text(held), fmt.Sprintf("%d deletes", gone)), w.Text(held))

			w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
			for i := 1; i <= gone; i++ {
				delete(want, fmt.Sprintf("app/%d", i))
			}
			eu.Eventually(t, want)
			w.Wait()
			require.Empty(t, w.Text(held))
			require.Equal(t, fmt.Sprint(len(want)), w.Text(`SELECT count(*)::text FROM reconciler.ledger`), "I7: a ledger row leaves when the object is gone")
		})
	}
}

// I6, F11: deletes that a former owner's guard let pass within the window count for the next one.
func TestF11_GuardCountsOnAfterARestart(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 20)
	eu := servertest.NewPlace()
	limited := func(c *config.Target) { servertest.Quick(c); c.Guard.MaxDeletes, c.Guard.Window = new(5), time.Hour }
	for restarts := range 3 {
		p := w.Start(servertest.Named("eu", eu, limited))
		w.Converged()
		w.DB.Exec(t, `DELETE FROM apps WHERE id <= $1`, min(5, 2*(restarts+1)))
		w.Converged()
		p.Stop(t)
	}
	w.Start(servertest.Named("eu", eu, limited))
	w.DB.Exec(t, `DELETE FROM apps WHERE id <= 6`)
	w.Settled("1", `SELECT held::text FROM reconciler.status WHERE target = 'eu'`)
	require.Len(t, eu.Have(), 15)
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Converged()
}

// C47: the rows come back, and the hold is over without a call.
func TestGuardLetsGoWhenTheRowsComeBack(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 100)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	_, before, _ := eu.Snapshot()
	w.DB.Exec(t, `CREATE TABLE saved AS TABLE apps; TRUNCATE apps`)
	w.Settled("100", `SELECT count(*)::text FROM reconciler.objects WHERE held_by = 'guard'`)
	w.DB.Exec(t, `INSERT INTO apps TABLE saved`)
	w.Wait()
	have, after, _ := eu.Snapshot()
	require.Equal(t, want, have)
	require.Len(t, after, len(before))
	w.Settled("", `SELECT guard FROM reconciler.status WHERE target = 'eu'`)
	// A single delete passes again.
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 1`)
	delete(want, "app/1")
	eu.Eventually(t, want)
}

// C42: rows that change, move and vanish while pages are read end right.
func TestSyncOfAMovingTableEndsRight(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3000)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	n := 0
	begun := make(chan struct{})
	eu.Set(func(context.Context, servertest.Call) driver.Outcome {
		if n++; n == 100 {
			close(begun)
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 1; m := 1.0; c.Guard.MaxFraction = &m }), servertest.Named("us", us))
	<-begun
	w.DB.Exec(t, `UPDATE apps SET region = 'us' WHERE id % 10 = 0`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id % 10 = 1`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id % 10 = 2`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'new' FROM generate_series(5001, 5010) AS i`)
	w.DB.Exec(t, `UPDATE apps SET id = id + 10000 WHERE id % 10 = 3`)
	w.Wait()
	for region, p := range map[string]*servertest.Place{"eu": eu, "us": us} {
		rows, err := w.DB.Pool.Query(context.Background(), `SELECT 'app/' || id, to_jsonb(image)::text FROM apps WHERE running AND region = $1`, region)
		require.NoError(t, err)
		want := map[string]string{}
		for rows.Next() {
			var id, spec string
			require.NoError(t, rows.Scan(&id, &spec))
			want[id] = spec
		}
		require.NoError(t, rows.Err())
		have, _, _ := p.Snapshot()
		require.Equal(t, want, have)
	}
}

// C48, I11: a live change does not wait for a sync; and a live flood does not stop a sync.
func TestLiveChangesGoBeforeASync(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2000)
	eu := servertest.NewPlace()
	hold := make(chan struct{})
	started := make(chan struct{}, 2000)
	eu.Set(func(ctx context.Context, c servertest.Call) driver.Outcome {
		if c.Spec == `"v1"` { // calls of the sync hang
			started <- struct{}{}
			select {
			case <-hold:
			case <-ctx.Done():
			}
		}
		return driver.Done()
	})
	w.Start(servertest.Named("eu", eu))
	for range 3 { // a quarter of four workers is kept for live changes
		<-started
	}
	w.DB.Exec(t, `UPDATE apps SET image = 'live' WHERE id = 2000`)
	eu.Until(t, func(have map[string]string, _ []servertest.Call) bool { return have["app/2000"] == `"live"` }, func() string { return "the live change waits for the sync" })
	close(hold)
	w.Wait()
}

// C44: a sync that is killed between its pages deletes nothing, and the next owner's completes.
func TestKilledSyncIsTakenUp(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 200)
	eu := servertest.NewPlace()
	enough := make(chan struct{})
	n := 0
	eu.Set(func(ctx context.Context, _ servertest.Call) driver.Outcome {
		if n++; n == 50 {
			close(enough)
			<-ctx.Done()
			return driver.Backoff(ctx.Err())
		}
		return driver.Done()
	})
	first := w.StartWith(func(c *config.Config) { c.ShutdownTimeout = 100 * time.Millisecond }, servertest.Named("eu", eu, func(c *config.Target) { c.Concurrency = 1 }))
	<-enough
	w.Silently(`DELETE FROM apps WHERE id = 1`)
	delete(want, "app/1")
	first.Cancel()
	eu.Set(nil)
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, want)
	w.Wait()
}
