package server_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// broken is a place whose driver panics in all that is not a call.
type broken struct{ *place }

func (broken) List(context.Context, string) iter.Seq2[driver.Listed, error] {
	return func(func(driver.Listed, error) bool) { panic("no list") }
}
func (broken) Trouble() error              { panic("no trouble") }
func (broken) Close(context.Context) error { panic("no close") }

// A panic in a driver ends no other target, and not its own: it is a run that failed, with its stack.
func TestF80_APanicInADriverIsAFailedRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text)`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := newPlace(), newPlace()
	first := w.start(named("eu", broken{eu}, quick), named("us", us))
	w.seen("eu")
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'v1'), (2, 'us', 'v1')`)
	us.eventually(t, map[string]string{"app/2": `"v1"`})
	eu.eventually(t, map[string]string{"app/1": `"v1"`})
	w.db.Exec(t, `SELECT reconciler.resync('eu')`)
	w.settled("true", `SELECT (count(*) > 0)::text FROM reconciler.syncs WHERE target = 'eu' AND state = 'failed' AND error LIKE '%the driver panicked: no list%panic_test.go%'`)
	w.settled("the driver panicked: no trouble", `SELECT trouble FROM reconciler.targets WHERE name = 'eu'`)
	w.db.Exec(t, `UPDATE apps SET image = 'v2'`)
	eu.eventually(t, map[string]string{"app/1": `"v2"`})
	us.eventually(t, map[string]string{"app/2": `"v2"`})
	first.stop(t)
	require.Len(t, w.logged("driver_not_closed"), 1)
}

// closing is a place that is closed once the other one is.
type closing struct {
	*place

	done, await chan struct{}
}

func (c closing) Close(ctx context.Context) error {
	close(c.done)
	select {
	case <-c.await:
		return nil
	case <-ctx.Done():
		return errors.New("the other one is not being closed")
	}
}

// Drivers are closed at once: one that takes its time takes none of the others'.
func TestDriversAreClosedTogether(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := make(chan struct{}), make(chan struct{})
	p := w.start(named("eu", closing{place: newPlace(), done: a, await: b}), named("us", closing{place: newPlace(), done: b, await: a}))
	w.eventually("it has started", func() bool { return len(w.logged("msg=started")) > 0 })
	p.stop(t)
	require.Empty(t, w.logged("driver_not_closed"))
}

// contested is a place where others change an object again each time.
type contested struct{ *place }

func (contested) Trouble() error { return errors.New("ConfigMap a: other changed .data.a") }
func (contested) Contested() int { return 1 }

func TestWhatOthersChangeAgainIsShown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	p := w.start(named("eu", contested{newPlace()}))
	w.settled("ConfigMap a: other changed .data.a", `SELECT trouble FROM reconciler.status WHERE target = 'eu'`)
	w.settled("eu: ConfigMap a: other changed .data.a", `SELECT finding FROM reconciler.doctor() WHERE finding LIKE 'eu: %'`)
	require.InDelta(t, 1, w.series("contested"), 0)
	p.stop(t)
	require.Zero(t, w.series("contested"))
}
