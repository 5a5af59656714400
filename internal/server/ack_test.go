package server_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
	"github.com/pgreconciler/reconciler/internal/stream"
)

// acked is a stream target that waits for reports.
func acked(t testing.TB, name string) servertest.Target {
	t.Helper()
	d, err := stream.Kind().Open(name, driver.Options{"ack": true}, driver.Env{})
	require.NoError(t, err)
	return servertest.Named(name, d, func(c *config.Target) { c.Driver = "stream" })
}

// far is a far side: a controller that follows a target, and keeps what it has in memory.
type far struct {
	mu      sync.Mutex // guards what follows
	has     map[string]string
	refused string // spec that fails
}

// follow runs a controller of app until the test ends.
func follow(w *servertest.World, address, name string) *far {
	w.T.Helper()
	c, err := client.New("http://" + address)
	require.NoError(w.T, err)
	f := &far{has: map[string]string{}}
	informer := client.NewInformer(c, name, client.InformerOptions{})
	apps := client.For[[]any](informer, "app")
	controller := client.NewController(informer, "app", func(_ context.Context, key string) (client.Result, error) {
		spec, ok, err := apps.Get(key)
		if err != nil {
			return client.Result{}, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case !ok:
			delete(f.has, key)
			return client.Absent(), nil
		case fmt.Sprint(spec) == f.refused:
			return client.Failed("no room for " + f.refused), nil
		}
		f.has[key] = fmt.Sprint(spec)
		return client.Applied(), nil
	}, client.Workers(1))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{informer.Run, controller.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				w.T.Errorf("%s: %v", name, err)
			}
		})
	}
	w.T.Cleanup(func() { cancel(); running.Wait() })
	return f
}

func (f *far) refuse(spec string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = spec
}

func (f *far) objects() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.has)
}

// C7: a rollout goes from region to region by what clients report, and stops at the one that fails. wait() waits for the far side, and an
// object is gone when its client has reported it absent.
func TestRolloutFollowsReports(t *testing.T) {
	t.Parallel()
	w, _, _, _ := regions(t)
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(t, "asia"), acked(t, "eu"), acked(t, "us"))
	const states = `SELECT string_agg(target || ' ' || state, ', ' ORDER BY target) FROM reconciler.objects`
	w.Settled("asia pending, eu pending, us pending", states)
	require.Contains(t, w.Text(`SELECT string_agg(e, ' ') FROM reconciler.explain('eu', 'app', '2') AS e`), "Ledger: pending: no client has reported it; looked at again at ")

	address := address(w, "streams.listen")
	asia, eu, us := follow(w, address, "asia"), follow(w, address, "eu"), follow(w, address, "us")
	w.Wait()
	require.Equal(t, "map[1:[v1 <nil>]] map[2:[v1 <nil>]] map[3:[v1 <nil>]]", fmt.Sprint(asia.objects(), " ", eu.objects(), " ", us.objects()))
	require.Equal(t, "asia applied, eu applied, us applied", w.Text(states))

	eu.refuse("[v2 <nil>]")
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "eu failed: 2: no room for [v2 <nil>]", w.Text(`SELECT error FROM reconciler.apply_status`))
	require.Equal(t, "map[1:[v2 <nil>]] map[2:[v1 <nil>]] map[3:[v1 <nil>]]", fmt.Sprint(asia.objects(), " ", eu.objects(), " ", us.objects()))
	require.Equal(t, "failing no room for [v2 <nil>]", w.Text(`SELECT state || ' ' || last_error FROM reconciler.objects WHERE target = 'eu'`))

	w.DB.Exec(t, `DELETE FROM apps WHERE region = 'asia'`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.objects WHERE target = 'asia'`)
	require.Equal(t, "map[]", asia.objects())
	require.Equal(t, "absent", w.Text(`SELECT o.state FROM reconciler.observations o JOIN reconciler.targets t ON t.id = o.target_id WHERE t.name = 'asia'`))
}

// A rollout does not go on while the client of a target reports its far side as not healthy.
func TestRolloutWaitsForTheFarSide(t *testing.T) {
	t.Parallel()
	w, _, _, _ := regions(t)
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(t, "asia"), acked(t, "eu"), acked(t, "us"))
	address := address(w, "streams.listen")
	asia, eu := follow(w, address, "asia"), follow(w, address, "eu")
	follow(w, address, "us")
	w.Wait()
	const ofAsia = ` WHERE target_id = (SELECT id FROM reconciler.targets WHERE name = 'asia')`
	w.DB.Exec(t, `UPDATE reconciler.reports SET held = 0, healthy = false, trouble = 'disk full'`+ofAsia)
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("waiting for asia: not healthy: disk full", `SELECT detail FROM reconciler.apply_targets WHERE target = 'eu'`)
	require.Equal(t, "map[1:[v2 <nil>]] map[2:[v1 <nil>]]", fmt.Sprint(asia.objects(), " ", eu.objects()))
	w.DB.Exec(t, `UPDATE reconciler.reports SET healthy = true, trouble = NULL`+ofAsia)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "map[2:[v2 <nil>]]", eu.objects())
}
