package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

const tracked = `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text);
	SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`

// through has a process connect through a line.
func through(line *pgtest.Line) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.DatabaseURL, cfg.DirectURL = config.NewURL(line.URL), config.NewURL(line.URL)
	}
}

// I1: connections go dead without a word while new ones work. No part of the process goes on waiting on one of them.
func TestF77_HalfOpenConnectionsAreGivenUp(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, tracked)
	line := pgtest.NewLine(t, w.DB.URL)
	eu := servertest.NewPlace()
	p := w.StartWith(func(c *config.Config) {
		through(line)(c)
		c.ShutdownTimeout = time.Minute
	}, servertest.Named("eu", eu))
	want := map[string]string{}
	for n := range 3 {
		w.DB.Exec(t, `INSERT INTO apps (id, region, image) VALUES ($1, 'eu', 'v1')`, n)
		want[fmt.Sprintf("app/%d", n)] = `"v1"`
		eu.Eventually(t, want)
		line.Swallow()
	}
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	for n := range 3 {
		want[fmt.Sprintf("app/%d", n)] = `"v2"`
	}
	eu.Eventually(t, want)
	w.Eventually("the end of the silence is logged", func() bool { return len(w.Logged("heartbeat_recovered")) > 0 })
	line.Cut()
	p.Stop(t)
}
