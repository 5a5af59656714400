package rows_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// parted is a driver whose objects are lists of parts. It asks the guard for parts that a list has lost.
type parted struct {
	*servertest.Place

	mu    sync.Mutex // guards parts
	parts map[string][]string
}

func (p *parted) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	var now []string
	if err := json.Unmarshal(obj.Spec, &now); err != nil {
		return driver.Terminal(err)
	}
	lost := 0
	for _, part := range p.parts[obj.Key] {
		if !slices.Contains(now, part) {
			lost++
		}
	}
	if !obj.MayRemove(lost) {
		return driver.Unapproved(errors.New("parts would be lost"))
	}
	p.parts[obj.Key] = now
	return p.Place.Apply(ctx, obj)
}

// F162: what applies remove counts with the deletes of the target, whoever owns it, and waits for approval beyond the limit.
func TestF162_RemovalsWithinAppliesPassTheGuard(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, parts jsonb); INSERT INTO apps SELECT i, '["a", "b"]' FROM generate_series(1, 60) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', '''eu''', spec => 'parts')`)
	eu := &parted{Place: servertest.NewPlace(), parts: map[string][]string{}}
	limited := func(c *config.Target) { servertest.Quick(c); c.Guard.MaxDeletes, c.Guard.Window = new(5), time.Hour }
	p := w.Start(servertest.Named("eu", eu, limited))
	w.Wait()
	w.DB.Exec(t, `UPDATE apps SET parts = '["a"]' WHERE id <= 3; DELETE FROM apps WHERE id = 60`)
	w.Wait()
	require.Equal(t, 1, eu.Deletes())

	p.Stop(t)
	w.Start(servertest.Named("eu", eu, limited))
	w.DB.Exec(t, `UPDATE apps SET parts = '["c"]' WHERE id = 4`)
	w.Settled("4 wanted", waiting) // two parts, and the limit has room for one
	w.DB.Exec(t, `UPDATE apps SET parts = '["a"]' WHERE id = 5`)
	w.Settled("5", `SELECT count(*)::text FROM reconciler.ledger WHERE state = 'applied' AND key::int <= 5 AND key <> '4' OR state = 'held'`)
	w.DB.Exec(t, `UPDATE apps SET parts = '[]' WHERE id BETWEEN 6 AND 59`)
	w.Settled("55", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard' AND wanted`)
	require.Equal(t, `["a", "b"]`, eu.Have()["app/59"])
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 5`)
	w.Settled("56", `SELECT count(*)::text FROM reconciler.held WHERE held_by = 'guard'`)
	w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
	w.Wait()
	require.Equal(t, `[]`, eu.Have()["app/59"])
	require.Equal(t, `["c"]`, eu.Have()["app/4"])
}
