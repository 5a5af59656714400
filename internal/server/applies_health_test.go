package server_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

// patient is a place that can say whether it is healthy. Tests say what it says.
type patient struct {
	*place

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
func clinic(t *testing.T) (w *world, asia *patient, all []target) {
	t.Helper()
	w, place, eu, us := regions(t)
	asia = &patient{place: place, says: healthy}
	quick := func(c *config.Target) { c.Timeout = 2 * time.Second }
	all = []target{named("asia", asia, quick), named("eu", eu), named("us", us)}
	return w, asia, all
}

func (w *world) release() {
	w.t.Helper()
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
}

const euWaits = `SELECT detail FROM reconciler.apply_targets WHERE target = 'eu'`

// C58: the next target starts when the former is healthy, whatever its driver makes of the question.
func TestApplyRollsWhenHealthy(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	w.start(all...)
	w.places["us"].eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.wait()
	require.Zero(t, asia.asked(), "nobody waits for it")
	asia.is(ill)
	w.release()
	w.settled("waiting for asia: not healthy: 2 of 5 are ready", euWaits)
	asia.is(func(context.Context) error { panic("oh") })
	w.settled("true", `SELECT (unhealthy LIKE 'the driver panicked: oh%')::text FROM reconciler.targets WHERE name = 'asia'`)
	asia.is(func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	w.settled("waiting for asia: not healthy: timed out after 2s", euWaits)
	asked := make(chan struct{}, 10)
	asia.is(func(context.Context) error {
		asked <- struct{}{}
		return errors.New("")
	})
	w.settled("waiting for asia: not healthy: the driver gave no reason", euWaits)
	for range 3 { // by then it has said so twice
		<-asked
	}
	objects, _, _ := w.places["eu"].snapshot()
	require.Equal(t, map[string]string{"app/2": `["v1", null]`}, objects)
	asia.is(healthy)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.places["us"].eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.converged()
	require.Len(t, w.logged("target_unhealthy"), 4, "one for each answer that is another one")
	require.Len(t, w.logged("target_healthy"), 1)
}

// C60: the next owner asks where the former one was cut off.
func TestApplyHealthIsAskedByTheNextOwner(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	w.start(all...)
	w.places["us"].eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.wait()
	begun := make(chan struct{}, 10)
	asia.is(func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done() // the owner that asks is lost before it has an answer
		return context.Cause(ctx)
	})
	w.release()
	<-begun
	first := w.text(`SELECT term::text FROM reconciler.targets WHERE name = 'asia'`)
	w.db.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false WHERE name = 'asia'`)
	w.settled("1", `SELECT (term - `+first+`)::text FROM reconciler.targets WHERE name = 'asia'`)
	asia.is(healthy)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.converged()
}

// A target whose config loses the option holds nobody up any more.
func TestApplyHealthIsNoLongerReported(t *testing.T) {
	t.Parallel()
	w, asia, all := clinic(t)
	first := w.start(all...)
	w.places["us"].eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.wait()
	asia.is(ill)
	w.release()
	w.settled("waiting for asia: not healthy: 2 of 5 are ready", euWaits)
	first.stop(t)
	all[0].driver = asia.place
	w.start(all...)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.converged()
}
