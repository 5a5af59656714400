package server_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// pair is a primary with a database, and a standby of it.
type pair struct {
	*servertest.World

	old, promoted *pgtest.Cluster
	before, after *pgtest.DB // on the old primary, and on the promoted one
	eu            *servertest.Place
}

func newPair(t *testing.T) *pair {
	t.Helper()
	old := pgtest.Server(t)
	db := old.New(t)
	standby := old.Standby(t)
	p := &pair{old: old, promoted: standby, before: db, after: standby.Same(t, db), eu: servertest.NewPlace()}
	p.World = servertest.NewOn(t, db) // what must hold in the end is looked at before the pools are closed
	db.Exec(t, tracked)
	db.Exec(t, `INSERT INTO apps SELECT n, 'eu', 'v1' FROM generate_series(1, 3) AS n`)
	return p
}

// failOver promotes the standby; the old primary goes on.
func (p *pair) failOver() {
	p.T.Helper()
	p.promoted.AwaitReplay(p.T, p.old)
	p.promoted.Promote(p.T)
	p.DB = p.after
}

// has waits until the target has all objects at a version.
func (p *pair) has(version string) {
	p.T.Helper()
	want := map[string]string{}
	for n := range 3 {
		want[fmt.Sprintf("app/%d", n+1)] = `"` + version + `"`
	}
	p.eu.Eventually(p.T, want)
}

func (p *pair) set(version string) {
	p.T.Helper()
	p.DB.Exec(p.T, `UPDATE apps SET image = $1`, version)
}

// urls has a process use URLs.
func urls(database, direct string, listen *string) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.DatabaseURL, cfg.DirectURL = config.NewURL(database), config.NewURL(direct)
		if listen != nil {
			cfg.Listen = *listen
		}
	}
}

// called returns the specs that the target was called with, each once, in order.
func (p *pair) called() (specs []string) {
	_, calls, _ := p.eu.Snapshot()
	for _, c := range calls {
		specs = append(specs, c.Spec)
	}
	return slices.Compact(specs)
}

// I3, I12: the old primary comes back after a failover and takes writes. A process that has seen the new one never goes back, though
// the old one is first in its URL; nor does one that begins while both take writes.
func TestF88_OldPrimaryThatComesBackIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	url := pgtest.URLs(p.before.Name, p.old, p.promoted)
	first := p.StartWith(urls(url, url, nil), servertest.Named("eu", p.eu, servertest.Quick))
	p.has("v1")
	p.promoted.AwaitReplay(t, p.old)
	p.old.StopImmediate(t)
	p.failOverDead()
	p.set("v3")
	p.has("v3")
	// A target may be applied before the last loop has noticed.
	p.Eventually("the end of the outage is logged", func() bool { return len(p.Logged("database_restored")) > 0 })

	p.old.Start(t)
	// Everything of the process there ends, once.
	p.DB.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`)
	p.set("v4")
	p.has("v4")
	p.Eventually("the old primary is named", func() bool { return len(p.Logged("server_refused")) > 0 })
	require.Contains(t, p.Logged("server_refused")[0], fmt.Sprintf("the server at %s is an old primary and is not used: it is on timeline 1, and timeline 2 of the same system was seen at %s", p.old.Addr(), p.promoted.Addr()))
	first.Stop(t)

	second := p.StartWith(urls(url, url, nil), servertest.Named("eu", p.eu, servertest.Quick))
	p.set("v5")
	p.has("v5")
	second.Stop(t)
	require.Equal(t, []string{`"v1"`, `"v3"`, `"v4"`, `"v5"`}, p.called())
	require.Equal(t, "0", textOf(t, p.before, `SELECT epoch::text FROM reconciler.installation`), "the old primary was left alone")
}

// I1, I3: a process starts while only the old primary is reachable, and applies its rows. When it moves to the new primary, which was
// adopted long before, those changes are repaired without any new write.
func TestF88_WhatAnOldPrimaryChangedIsRepaired(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	url := pgtest.URLs(p.before.Name, p.promoted, p.old)
	first := p.StartWith(urls(url, url, nil), servertest.Named("eu", servertest.Listing{Place: p.eu}, servertest.Quick))
	p.has("v1")
	p.promoted.AwaitReplay(t, p.old)
	p.old.StopImmediate(t)
	p.failOverDead()
	p.set("v2")
	p.has("v2")
	onNew := p.after.Conn(t)
	p.Eventually("all is settled", func() (settled bool) {
		require.NoError(t, onNew.QueryRow(t.Context(), `SELECT count(*) = 0 FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`).Scan(&settled))
		return settled
	})
	first.Stop(t)
	require.Empty(t, p.Logged("old_primary_left"))

	p.promoted.StopImmediate(t)
	p.old.Start(t)
	second := p.StartWith(urls(url, url, nil), servertest.Named("eu", servertest.Listing{Place: p.eu}, servertest.Quick))
	onOld := p.before.Conn(t)
	_, err := onOld.Exec(t.Context(), `UPDATE apps SET image = 'lost'; INSERT INTO apps VALUES (4, 'eu', 'lost')`)
	require.NoError(t, err)
	p.eu.Eventually(t, map[string]string{"app/1": `"lost"`, "app/2": `"lost"`, "app/3": `"lost"`, "app/4": `"lost"`})

	p.promoted.Start(t)
	_, err = onOld.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`)
	require.NoError(t, err)
	p.has("v2")
	// Its new owner may have applied everything before the targets are named.
	p.Eventually("the targets are named", func() bool { return len(p.Logged("old_primary_left")) > 0 })
	require.Contains(t, p.Logged("old_primary_left")[0], "they were changed by its rows")
	second.Stop(t)
}

// failOverDead is failOver when the old primary has stopped.
func (p *pair) failOverDead() {
	p.T.Helper()
	p.promoted.Promote(p.T)
	p.DB = p.after
}

func textOf(t *testing.T, db *pgtest.DB, sql string) (text string) {
	t.Helper()
	// The pool may have connections of before the crash.
	require.NoError(t, db.Conn(t).QueryRow(t.Context(), sql).Scan(&text))
	return text
}

// I3: work and leases are on two servers for a while: one moved address, two names. The process stops, says why, and goes on
// when all of its connections lead to the new primary.
func TestF89_ConnectionsToTwoServersStopUntilTheyAgree(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	work, direct := pgtest.NewLine(t, p.before.URL), pgtest.NewLine(t, p.before.URL)
	listen := "127.0.0.1:0"
	daemon := p.StartWith(urls(work.URL, direct.URL, &listen), servertest.Named("eu", p.eu, servertest.Quick))
	p.has("v1")
	p.failOver()
	work.Lead(t, p.DB.URL)
	work.Cut()
	p.Eventually("readyz names both servers", func() bool {
		body := p.ready()
		return strings.Contains(body, "is an old primary and is not used") && strings.Contains(body, "timeline 2")
	})
	p.set("v2")
	require.NotContains(t, p.called(), `"v2"`)

	direct.Lead(t, p.DB.URL)
	p.has("v2")
	p.Eventually("it is ready", func() bool { return p.ready() == "ok\n" })
	require.Equal(t, []string{`"v1"`, `"v2"`}, p.called())
	daemon.Stop(t)
}

// ready returns what /readyz of the process answers.
func (p *pair) ready() string {
	lines := p.Logged("msg=listening")
	if len(lines) == 0 {
		return ""
	}
	_, addr, _ := strings.Cut(lines[len(lines)-1], "address=")
	answer, err := http.Get("http://" + addr + "/readyz")
	require.NoError(p.T, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(p.T, err)
	return string(body)
}

// Two URLs that lead to two databases are an error at the start, which names both.
func TestF89_TwoDatabasesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	w, other := servertest.New(t), pgtest.New(t)
	p := w.StartWith(urls(other.URL, w.DB.URL, nil), servertest.Named("eu", servertest.NewPlace()))
	var err error
	select {
	case err = <-p.Done:
	case <-t.Context().Done():
	}
	require.ErrorContains(t, err, "is in another database (system ")
	require.ErrorContains(t, err, "let database_url and direct_url lead to one database")
}
