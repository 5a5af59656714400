package rows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// placed is a target whose driver names where it is.
type placed struct {
	servertest.Listing

	place driver.Place
}

func (p placed) Place() driver.Place { return p.place }

// F5: what the place that a target had before has is named until a person acknowledges it, or the target has that place again and its
// objects there were listed.
func TestF5_ObjectsAtAPlaceThatWasLeftAreNamed(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 3)
	old, now := servertest.NewPlace(), servertest.NewPlace()
	start := func(p *servertest.Place, name, detail string) *servertest.Process {
		drv := placed{servertest.Listing{Place: p}, driver.Place{Name: name, Detail: detail}}
		run := w.Start(servertest.Named("eu", drv, func(c *config.Target) { c.Options = driver.Options{"at": name + detail} }))
		p.Eventually(t, want)
		w.Wait()
		return run
	}
	const left = `SELECT coalesce(string_agg(regexp_replace(finding, ' until .*', '') || ' | ' || remedy, E'\n' ORDER BY finding), 'nothing')
		FROM reconciler.doctor() WHERE finding ~ 'may remain'`
	const remedy = " | Compare that place with the rows, and delete there what is not wanted; then SELECT reconciler.acknowledge('eu');"

	run := start(old, "/srv/old", "")
	w.Settled("nothing", left)
	run.Stop(t)
	run = start(now, "/srv/new", "")
	w.Settled("3 objects may remain at /srv/old, where eu was"+remedy, left)
	w.Wait()
	require.Len(t, w.Logged("level=WARN msg=place_left target=eu place=/srv/old objects=3 "), 1)
	run.Stop(t)

	// Back again: what remained there is listed. What it had at the other place until now is not.
	run = start(old, "/srv/old", "")
	w.Settled("3 objects may remain at /srv/new, where eu was"+remedy, left)
	require.Equal(t, "eu was compared with the rows", w.Text(`SELECT reconciler.acknowledge('eu')`))
	require.Equal(t, "nothing", w.Text(left))
	require.Equal(t, "there was nothing to acknowledge of eu", w.Text(`SELECT reconciler.acknowledge('eu')`))
	run.Stop(t)

	// Only what is not shown differs.
	start(now, "/srv/old", "other")
	w.Settled("3 objects may remain at /srv/old, where eu was"+remedy, left)
}

// F130, across configs: doctor names two targets of different processes that have one place.
func TestF130_TargetsOfTwoProcessesWithOnePlaceAreNamed(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 1)
	place := servertest.NewPlace()
	shared := placed{servertest.Listing{Place: place}, driver.Place{Name: "https://h/{resource}/{key}"}}
	const same = `SELECT count(*)::text FROM reconciler.doctor() WHERE finding ~ 'have the same place'`
	w.Start(servertest.Named("eu", shared))
	place.Eventually(t, want)
	require.Equal(t, "0", w.Text(same))
	hidden := placed{servertest.Listing{Place: servertest.NewPlace()}, driver.Place{Name: "https://h/{resource}/{key}", Detail: "?part=2"}}
	w.Start(servertest.Named("asia", hidden))
	w.Seen("asia")
	require.Equal(t, "0", w.Text(same))
	w.Start(servertest.Named("us", shared))
	w.Seen("us")
	require.Equal(t, "eu and us have the same place, https://h/{resource}/{key}: a row that moves between them could be deleted where it arrives",
		w.Text(`SELECT finding FROM reconciler.doctor() WHERE finding ~ 'have the same place'`))
}
