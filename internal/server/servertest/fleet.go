package servertest

import (
	"fmt"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Apps makes a table and tracks it.
var Apps = []string{
	`CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL, running boolean NOT NULL DEFAULT true)`,
	`SELECT reconciler.track('app', 'apps', '{id}', 'region', running => 'running', spec => 'to_jsonb(image)')`,
}

// WithApps is New with the table apps, which a template has: to track it anew takes longer than many tests.
func WithApps(t testing.TB) *World {
	t.Helper()
	return NewOn(t, pgtest.New(t, Apps...))
}

// Fleet is WithApps with n running rows in target eu, and returns what the target is to have.
func Fleet(t testing.TB, n int) (*World, map[string]string) {
	t.Helper()
	w := WithApps(t)
	return w, w.Fleet(n)
}

// HoldingFleet is Fleet for a test that keeps transactions open.
func HoldingFleet(t testing.TB, n int) (*World, map[string]string) {
	t.Helper()
	w := NewOn(t, pgtest.Holding(t, Apps...))
	return w, w.Fleet(n)
}

// Fleet adds n rows in target eu to the table apps, which it makes if it is missing. They are as old as the tracking.
func (w *World) Fleet(n int) map[string]string {
	w.T.Helper()
	if w.Text(`SELECT to_regclass('apps')::text`) == "" {
		for _, sql := range Apps {
			w.DB.Exec(w.T, sql)
		}
	}
	w.Silently(fmt.Sprintf(`INSERT INTO apps SELECT i, 'eu', 'v1' FROM generate_series(1, %d) AS i`, n))
	want := map[string]string{}
	for i := 1; i <= n; i++ {
		want[fmt.Sprintf("app/%d", i)] = `"v1"`
	}
	return want
}
