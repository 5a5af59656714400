package server_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// patient is a place that can say whether it is healthy. Tests say what it says.
type patient struct {
	*servertest.Place

	mu   sync.Mutex
	says func(ctx context.Context) error // guarded by mu
	asks int                             // guarded by mu
}

func (p *patient) Health(ctx context.Context) error {
	p.mu.Lock()
	p.asks++
	says := p.says
	p.mu.Unlock()
	return says(ctx)
}

func (p *patient) is(says func(ctx context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says = says
}

func (p *patient) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asks
}

func healthy(context.Context) error { return nil }

func ill(context.Context) error { return errors.New("2 of 5 are ready") }

// clinic is a world of three targets with one object each, of which the first reports its health.
func clinic(t *testing.T) (w *servertest.World, asia *patient, all []servertest.Target) {
	t.Helper()
	w, place, eu, us := regions(t)
	asia = &patient{Place: place, says: healthy}
	quick := func(c *config.Target) { c.Timeout = 2 * time.Second }
	all = []servertest.Target{servertest.Named("asia", asia, quick), servertest.Named("eu", eu), servertest.Named("us", us)}
	return w, asia, all
}

func release(w *servertest.World) {
	w.T.Helper()
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
}

const euWaits = `SELECT detail FROM reconciler.apply_targets WHERE target = 'eu'`

// C58: the next target starts when the former is healthy, whatever its driver makes of the question.
func TestApplyRollsWhenHealthy(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	require.Zero(t, asia.asked(), "nobody waits for it")
	asia.is(ill)
	release(w)
	w.Settled("waiting for asia: not healthy: 2 of 5 are ready", euWaits)
	asia.is(func(context.Context) error { panic("oh") })
	w.Settled("true", `SELECT (unhealthy LIKE 'the driver panicked: oh%')::text FROM reconciler.targets WHERE name = 'asia'`)
	asia.is(func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	w.Settled("waiting for asia: not healthy: timed out after 2s", euWaits)
	asked := make(chan struct{}, 10)
	asia.is(func(context.Context) error {
		asked <- struct{}{}
		return errors.New("")
	})
	w.Settled("waiting for asia: not healthy: the driver gave no reason", euWaits)
	for range 3 { // by then it has said so twice
		<-asked
	}
	objects, _, _ := w.Places["eu"].Snapshot()
	require.Equal(t, map[string]string{"app/2": `["v1", null]`}, objects)
	asia.is(healthy)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.Converged()
	require.Len(t, w.Logged("target_unhealthy"), 4, "one for each answer that is another one")
	require.Len(t, w.Logged("target_healthy"), 1)
}

// C60: the next owner asks where the former one was cut off.
func TestApplyHealthIsAskedByTheNextOwner(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	begun := make(chan struct{}, 10)
	asia.is(func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done() // the owner that asks is lost before it has an answer
		return context.Cause(ctx)
	})
	release(w)
	<-begun
	first := w.Text(`SELECT term::text FROM reconciler.targets WHERE name = 'asia'`)
	w.DB.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false WHERE name = 'asia'`)
	w.Settled("1", `SELECT (term - `+first+`)::text FROM reconciler.targets WHERE name = 'asia'`)
	asia.is(healthy)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Converged()
}

// A target whose config loses the option holds nobody up any more.
func TestApplyHealthIsNoLongerReported(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	first := w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	asia.is(ill)
	release(w)
	w.Settled("waiting for asia: not healthy: 2 of 5 are ready", euWaits)
	first.Stop(t)
	all[0].Driver = asia.Place
	w.Start(all...)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Converged()
}
