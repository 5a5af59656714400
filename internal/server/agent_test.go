package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/agent"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// startAgent runs an agent of one target until the test ends or the function that it returns is called.
func startAgent(w *servertest.World, address, name string, drv driver.Driver) (stop func()) {
	w.T.Helper()
	return startAgentIn(w, w.T.TempDir(), address, name, drv)
}

// startAgentIn is startAgent with the state of a directory.
func startAgentIn(w *servertest.World, dir, address, name string, drv driver.Driver) (stop func()) {
	w.T.Helper()
	text, err := json.Marshal(map[string]any{
		"server": "http://" + address, "name": "host-" + name, "state_dir": dir + "/state", "listen": "off",
		"targets": []any{map[string]any{"name": name, "driver": "far"}},
	})
	require.NoError(w.T, err)
	path := filepath.Join(dir, "agent.json")
	require.NoError(w.T, os.WriteFile(path, text, 0o600))
	open := func(string, driver.Options, driver.Env) (driver.Driver, error) { return drv, nil }
	cfg, drivers, err := config.LoadAndOpen(config.LoadOptions{Path: path, Agent: true, Registry: driver.Registry{{Name: "far", Open: open}}}, driver.Env{})
	require.NoError(w.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a := agent.New(agent.Options{
		Config: cfg, Drivers: drivers, Version: "1.2.0", Registry: prometheus.NewRegistry(),
		Logger: slog.New(slog.NewTextHandler(w.Log, nil)),
	})
	go func() {
		defer close(ended)
		if err := a.Run(ctx); err != nil {
			w.T.Errorf("agent of %s: %v", name, err)
		}
	}()
	stop = func() { cancel(); <-ended }
	w.T.Cleanup(stop)
	return stop
}

// begun notes on whose behalf it is called.
type begun struct {
	*servertest.Place

	home chan driver.Home
}

func (b begun) Start(_ context.Context, home driver.Home) { b.home <- home }

// The daemon and an agent of its stream name the same installation to their drivers, and a copy in another database is another one.
func TestF163_AgentsAreOfTheInstallationOfTheirServer(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	far := begun{servertest.NewPlace(), make(chan driver.Home, 1)}
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, streaming(t))
	startAgent(w, address(w, "streams.listen"), "eu", far)
	var home driver.Home
	require.NoError(t, json.Unmarshal([]byte(w.Text(`SELECT json_build_object('id', i.id, 'system', s.system::text, 'database', current_database(), 'agent', true)
		FROM reconciler.installation i, reconciler.this_server() s`)), &home))
	require.Equal(t, home, <-far.home)
}

// A5: a rollout goes from target to target by what agents report, and stops at the one that fails, or that is not healthy.
func TestRolloutFollowsAgents(t *testing.T) {
	t.Parallel()
	w, place, eu, us := regions(t)
	asia := &patient{Place: place, says: ill}
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(t, "asia"), acked(t, "eu"), acked(t, "us"))
	address := address(w, "streams.listen")
	startAgent(w, address, "asia", asia)
	startAgent(w, address, "eu", eu)
	startAgent(w, address, "us", us)
	w.Wait()
	w.Settled("asia far 1, eu far 1, us far 1",
		`SELECT string_agg(format('%s %s %s', target, driver, objects), ', ' ORDER BY target) FROM reconciler.agents`)

	release(w)
	w.Settled("waiting for asia: not healthy: 2 of 5 are ready", euWaits)
	place.Eventually(t, map[string]string{"app/1": `["v2", null]`})
	eu.Eventually(t, map[string]string{"app/2": `["v1", null]`})
	eu.Set(func(context.Context, servertest.Call) driver.Outcome {
		return driver.Terminal(errors.New("no room"))
	})
	asia.is(healthy)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "eu failed: 2: no room", w.Text(`SELECT error FROM reconciler.apply_status`))
	us.Eventually(t, map[string]string{"app/3": `["v1", null]`})
}

// A rollout goes on when an agent reports what it brought as healthy. A client that reports no health holds nothing.
func TestRolloutWaitsForObjectsBehindAnAgent(t *testing.T) {
	t.Parallel()
	w, place, _, us := regions(t)
	asia := newWard(place)
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(t, "asia"), acked(t, "eu"), acked(t, "us"))
	address := address(w, "streams.listen")
	startAgent(w, address, "asia", asia)
	follow(w, address, "eu")
	startAgent(w, address, "us", us)
	w.Wait()
	w.Settled("app 1 t, app 2, app 3",
		`SELECT string_agg(concat_ws(' ', resource, key, healthy), ', ' ORDER BY key) FROM reconciler.objects`)
	require.Equal(t, "all healthy", waitHealthy(w, "90 s"))

	asia.is("1", state(driver.Progressing, "2 of 5 are ready"))
	release(w)
	w.Settled("waiting for asia: not healthy: app 1: 2 of 5 are ready", euWaits)
	w.Settled("asia app 1 unhealthy 2 of 5 are ready", health+` WHERE key IS NOT NULL`)
	asia.is("1", func(context.Context) (driver.ObjectHealth, error) {
		return driver.ObjectHealth{}, errors.New("no such object")
	})
	w.Settled("waiting for asia: not healthy: app 1: not known: no such object", euWaits)
	require.Equal(t, "asia unhealthy app 1: not known: no such object", waitHealthy(w, "3 s"))
	asia.is("1", nil)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "all healthy", waitHealthy(w, "90 s"))
	w.Settled("all healthy", health)
}

// listed is a listing that notes when it was asked.
type listed struct {
	servertest.Listing

	asked chan struct{}
}

func (l listed) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	l.asked <- struct{}{}
	return l.Listing.List(ctx, resources)
}

// A4: commands reach an agent by way of the stream, also those that were given while it was away.
func TestAgentObeysCommandsOfTheDatabase(t *testing.T) {
	t.Parallel()
	w, _, eu, _ := regions(t)
	w.StartWith(func(c *config.Config) { c.Streams.Listen = "127.0.0.1:0" }, acked(t, "eu"))
	address, dir, far := address(w, "streams.listen"), t.TempDir(), listed{servertest.Listing{Place: eu}, make(chan struct{}, 1000)}
	v1, v2 := map[string]string{"app/2": `["v1", null]`}, map[string]string{"app/2": `["v2", null]`}
	stop := startAgentIn(w, dir, address, "eu", far)
	eu.Eventually(t, v1)
	w.WaitFor("eu")

	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 2`)
	w.Settled("failing no room", `SELECT state || ' ' || last_error FROM reconciler.objects WHERE target = 'eu'`)
	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
	eu.Eventually(t, v2)
	w.WaitFor("eu")

	eu.Put("app/2", "")
	for i := range 11 { // more than the agent's guard lets pass
		eu.Put(fmt.Sprint("app/orphan", i), "1")
	}
	w.DB.Exec(t, `SELECT reconciler.resync('eu')`)
	w.Settled("11", `SELECT held::text FROM reconciler.agents WHERE target = 'eu'`)
	w.Eventually("app/2 is back", func() bool { return eu.Have()["app/2"] == v2["app/2"] })

	stop()
	w.DB.Exec(t, `SELECT reconciler.pause('eu'), reconciler.approve('eu')`)
	for len(far.asked) > 0 {
		<-far.asked
	}
	_, before, _ := eu.Snapshot()
	startAgentIn(w, dir, address, "eu", far)
	<-far.asked // it has the commands by then
	w.Settled("true", `SELECT (last_report > since)::text FROM reconciler.agents WHERE target = 'eu'`)
	_, after, _ := eu.Snapshot()
	require.Equal(t, before, after, "it is paused")
	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	eu.Eventually(t, v2)
}
