package server_test

import (
	"fmt"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// apps makes a table and tracks it.
var apps = []string{
	`CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL, running boolean NOT NULL DEFAULT true)`,
	`SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'running', spec => 'to_jsonb(image)')`,
}

// withApps is setup with the table apps, which a template has: to track it anew takes longer than many tests.
func withApps(t testing.TB) *world {
	t.Helper()
	return setupOn(t, pgtest.New(t, apps...))
}

// fleet is withApps with n running rows in target eu, and returns what the target is to have.
func fleet(t testing.TB, n int) (*world, map[string]string) {
	t.Helper()
	w := withApps(t)
	return w, w.fleet(n)
}

// holdingFleet is fleet for a test that keeps transactions open.
func holdingFleet(t testing.TB, n int) (*world, map[string]string) {
	t.Helper()
	w := setupOn(t, pgtest.Holding(t, apps...))
	return w, w.fleet(n)
}

// fleet adds n rows in target eu to the table apps, which it makes if it is missing. They are as old as the tracking.
func (w *world) fleet(n int) map[string]string {
	w.t.Helper()
	if w.text(`SELECT to_regclass('apps')::text`) == "" {
		for _, sql := range apps {
			w.db.Exec(w.t, sql)
		}
	}
	w.silently(fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, %d) AS i`, n))
	want := map[string]string{}
	for i := 1; i <= n; i++ {
		want[fmt.Sprintf("app/%d", i)] = `"v1"`
	}
	return want
}
