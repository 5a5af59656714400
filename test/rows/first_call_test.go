package rows_test

import (
	"context"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// I7: what nobody wants any more while its first call is under way is known all the same to whatever looks for what is to be
// deleted: no orphan is left at a target that cannot list.
func TestF1_CallsUnderWayAreKnownToWhateverDeletes(t *testing.T) {
	t.Parallel()
	const rows, calls = 300, 4
	for name, c := range map[string]struct{ order, reason string }{
		"Truncate": {`TRUNCATE apps`, "resource"},
		"Track":    {`SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'running AND false', spec => 'to_jsonb(image)')`, "resource"},
		"Release":  {`SELECT reconciler.release('eu', 'delete')`, "resync"},
		"Untrack":  {`SELECT reconciler.untrack('app', 'delete')`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := servertest.Fleet(t, 0)
			eu := servertest.NewPlace()
			w.Start(servertest.Named("eu", eu))
			w.Wait()
			g := eu.Shut(t, nil)
			w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, $1) AS i`, rows)
			for range calls {
				g.Next(t)
			}
			said := w.Text(c.order)
			require.NotContains(t, said, "it had no objects")
			// The calls end only after the sync has looked at the ledger: it is complete if it found none of them.
			w.Eventually("the sync has begun", func() bool {
				return c.reason == "" || w.Text(`SELECT (count(*) > 0)::text FROM reconciler.sync_runs WHERE reason = $1 AND state IN ('running', 'complete')
					AND (state = 'complete' OR tombstones > 0 OR (SELECT count(*) FROM reconciler.ledger WHERE present) >= $2)`, c.reason, calls) == "true"
			})
			g.Lift()
			w.Wait()
			w.Settled("0", `SELECT count(*)::text FROM reconciler.ledger`)
			require.Empty(t, eu.Have(), "%s", said)
			if name == "Untrack" {
				require.True(t, strings.HasSuffix(said, "objects of app are being deleted"), said)
				w.Settled("0", `SELECT count(*)::text FROM reconciler.resources`)
			}
		})
	}
}

// I7, I12: a process dies between the first call for an object and the ledger, the row goes, and everything that was to be
// read is forgotten. The object is deleted all the same, at a target that cannot list.
func TestF7_FirstCallOfADeadOwnerOutlivesStartOver(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	eu := servertest.NewPlace()
	v := startVictim(w, newMortal(eu, func(c servertest.Call) string {
		if c.Key == "9" {
			return after
		}
		return passes
	}))
	w.Converged()
	w.DB.Exec(t, `INSERT INTO apps VALUES (9, 'eu', 'v1')`)
	v.catches(1)
	v.kill()
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 9`)
	w.DB.Exec(t, `SELECT reconciler.start_over('test')`)
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	w.Settled("true", `SELECT clean::text FROM reconciler.targets WHERE name = 'eu'`)
	w.Converged()
}

// I5: objects that wait for the rate limit are in the ledger already, and not in the target. Their rows go, and only what was
// applied is deleted.
func TestF1_ObjectsThatWaitForTheRateLimitAreNotDeleted(t *testing.T) {
	t.Parallel()
	const rows = 12
	w, _ := servertest.Fleet(t, 0)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Rate = 0.4 }))
	w.Wait()
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, $1) AS i`, rows)
	w.Eventually("one is applied, others wait", func() bool {
		return w.Text(`SELECT (bool_or(state = 'applied') AND bool_or(state = 'pending' AND present))::text FROM reconciler.ledger`) == "true"
	})
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Converged()
	_, calls, _ := eu.Snapshot()
	applied, deleted := map[string]bool{}, map[string]bool{}
	for _, c := range calls {
		if c.Action == "delete" {
			deleted[c.Key] = true
		} else {
			applied[c.Key] = true
		}
	}
	require.Equal(t, applied, deleted)
	require.Less(t, len(applied), rows)
}

// lateListing is a target that tells when it is to be listed, and lists what it has once it is let go on.
type lateListing struct {
	servertest.Listing

	asked, goOn chan struct{}
}

func (l lateListing) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	select {
	case l.asked <- struct{}{}:
		<-l.goOn
	default: // the test waits for the first listing only
	}
	return l.Listing.List(ctx, resources)
}

// F115: an object whose first call has begun, and has created it in the target, is no orphan for a sync that lists it: it is called
// for once.
func TestF115_ObjectOfTheFirstCallIsNoOrphan(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	eu := servertest.NewPlace()
	late := lateListing{servertest.Listing{Place: eu}, make(chan struct{}), make(chan struct{})}
	w.Start(servertest.Named("eu", late))
	eu.Eventually(t, want)
	w.Wait()
	begun, answer := make(chan struct{}, 2), make(chan struct{})
	eu.Set(func(ctx context.Context, c servertest.Call) driver.Outcome {
		eu.Put(c.ID(), c.Spec)
		begun <- struct{}{}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return driver.Done()
	})
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	<-late.asked
	w.DB.Exec(t, `INSERT INTO apps VALUES (2, 'eu', 'v1')`)
	<-begun
	late.goOn <- struct{}{}
	w.Settled("complete 0", `SELECT concat_ws(' ', state, drifted) FROM reconciler.sync_runs WHERE reason = 'resync'`)
	close(answer)
	w.Wait()
	_, calls, _ := eu.Snapshot()
	require.Len(t, calls, 2, "%v", calls)
}
