package server_test

import (
	"context"
	"errors"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// broken is a place whose driver panics in all that is not a call.
type broken struct{ *servertest.Place }

func (broken) List(context.Context, []string) iter.Seq2[driver.Listed, error] {
	return func(func(driver.Listed, error) bool) { panic("no list") }
}
func (broken) Trouble() error              { panic("no trouble") }
func (broken) Close(context.Context) error { panic("no close") }

// A panic in a driver ends no other target, and not its own: it is a run that failed, with its stack.
func TestF80_APanicInADriverIsAFailedRun(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text)`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	first := w.Start(servertest.Named("eu", broken{eu}, servertest.Quick), servertest.Named("us", us))
	w.Seen("eu")
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'v1'), (2, 'us', 'v1')`)
	us.Eventually(t, map[string]string{"app/2": `"v1"`})
	eu.Eventually(t, map[string]string{"app/1": `"v1"`})
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("true", `SELECT (count(*) > 0)::text FROM reconciler.syncs WHERE target = 'eu' AND state = 'failed' AND error LIKE '%the driver panicked: no list%panic_test.go%'`)
	w.Settled("the driver panicked: no trouble", `SELECT trouble FROM reconciler.targets WHERE name = 'eu'`)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	eu.Eventually(t, map[string]string{"app/1": `"v2"`})
	us.Eventually(t, map[string]string{"app/2": `"v2"`})
	first.Stop(t)
	require.Len(t, w.Logged("driver_not_closed"), 1)
}

// closing is a place that is closed once the other one is.
type closing struct {
	*servertest.Place

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
	w := servertest.New(t)
	a, b := make(chan struct{}), make(chan struct{})
	p := w.Start(servertest.Named("eu", closing{Place: servertest.NewPlace(), done: a, await: b}), servertest.Named("us", closing{Place: servertest.NewPlace(), done: b, await: a}))
	w.Eventually("it has started", func() bool { return len(w.Logged("msg=started")) > 0 })
	p.Stop(t)
	require.Empty(t, w.Logged("driver_not_closed"))
}

// contested is a place where others change an object again each time.
type contested struct{ *servertest.Place }

func (contested) Trouble() error { return errors.New("ConfigMap a: other changed .data.a") }
func (contested) Contested() int { return 1 }

func TestWhatOthersChangeAgainIsShown(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	p := w.Start(servertest.Named("eu", contested{servertest.NewPlace()}))
	w.Settled("ConfigMap a: other changed .data.a", `SELECT trouble FROM reconciler.status WHERE target = 'eu'`)
	w.Settled("eu: ConfigMap a: other changed .data.a", `SELECT finding FROM reconciler.doctor() WHERE finding LIKE 'eu: %'`)
	require.InDelta(t, 1, w.Series("contested"), 0)
	p.Stop(t)
	require.Zero(t, w.Series("contested"))
}
