package rows_test

import (
	"context"
	"iter"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// program is a target whose listing is written by a program: it lists everything that is there, and may name any resource.
type program struct {
	*servertest.Place

	mu     sync.Mutex
	naming func(resource string) string // guarded by mu
}

func (p *program) name(naming func(resource string) string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.naming = naming
}

func (p *program) List(context.Context, []string) iter.Seq2[driver.Listed, error] {
	objects, _, _ := p.Snapshot()
	p.mu.Lock()
	naming := p.naming
	p.mu.Unlock()
	return func(yield func(driver.Listed, error) bool) {
		for id := range objects {
			resource, key, _ := servertest.Cut(id)
			if !yield(driver.Listed{Resource: naming(resource), Key: key, Unmarked: true}, nil) {
				return
			}
		}
	}
}

func rightly(resource string) string { return resource }

// aSite is another resource, with a row in another target only.
const aSite = `CREATE TABLE sites (id text PRIMARY KEY, region text, running boolean DEFAULT true);
	INSERT INTO sites VALUES ('1', 'us', false);
	SELECT reconciler.track('site', 'sites', '{id}', 'region', running => 'running', spec => 'to_jsonb(id)')`

// F65, F133: a listing that names a resource wrongly names orphans: live objects, which a delete would remove.
func TestF133_ListingThatNamesAnUnknownResourceDeletesNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ resource, why string }{
		"NotTracked": {"apps", "which is not tracked"},
		"NoRowHere":  {"site", "which has neither a row nor a ledger row in this target"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 1)
			w.DB.Exec(t, aSite)
			eu := &program{Place: servertest.NewPlace(), naming: rightly}
			w.Start(servertest.Named("eu", eu))
			eu.Eventually(t, want)
			w.Wait()

			eu.name(func(string) string { return c.resource })
			w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
			why := "list what target eu has: it names an object of resource " + c.resource + ", " + c.why + ": key 1; nothing is deleted. " +
				"Correct what makes the listing: it must name the resource of each object, and leave out what reconciler did not apply here"
			w.Settled(why, `SELECT error FROM reconciler.syncs WHERE state = 'failed' ORDER BY id DESC LIMIT 1`)
			w.Settled(why, `SELECT error FROM reconciler.failing_loops WHERE loop = 'list' AND target = 'eu'`)
			w.Settled("true", `SELECT bool_and(remedy !~ 'approve')::text FROM reconciler.doctor() WHERE NOT ok AND finding ~ 'names an object of resource'`)
			require.Zero(t, eu.Deletes())

			eu.name(rightly)
			w.Wait()
			w.Settled("0", `SELECT count(*)::text FROM reconciler.failing_loops WHERE loop = 'list'`)
			require.Zero(t, eu.Deletes())
		})
	}
}

// An object of a resource that has a row there is an orphan, also if that row is the only one and is not running.
func TestF133_ListingThatNamesAKnownResourceFindsOrphans(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	w.DB.Exec(t, aSite)
	w.DB.Exec(t, `INSERT INTO sites VALUES ('2', 'eu', false)`)
	eu := &program{Place: servertest.NewPlace(), naming: rightly}
	eu.Put("app/stray", `"x"`)
	eu.Put("site/2", `"x"`)
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
}

// A sync of one resource reads the listing of all of them.
func TestF133_SyncOfOneResourcePassesOverOthers(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	w.DB.Exec(t, aSite)
	w.DB.Exec(t, `UPDATE sites SET region = 'eu', running = true`)
	want["site/1"] = `"1"`
	eu := &program{Place: servertest.NewPlace(), naming: rightly}
	w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, want)
	w.Wait()
	eu.Put("app/stray", `"x"`)
	w.DB.Exec(t, `INSERT INTO reconciler.sync_runs (target_id, resource_id, reason, verify)
		SELECT t.id, r.id, 'resource', true FROM reconciler.targets t, reconciler.resources r WHERE t.name = 'eu' AND r.name = 'site'`)
	w.DB.Exec(t, `NOTIFY reconciler_control`)
	w.Settled("complete rows=1 drifted=0", `SELECT state || ' rows=' || rows || ' drifted=' || drifted FROM reconciler.sync_runs WHERE reason = 'resource'`)
	require.Zero(t, eu.Deletes())
}
