package apply

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/guard"
	"github.com/pgreconciler/reconciler/internal/lease"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/store"
)

// noDB stands for the database in tests of what happens in memory. It notes the names of the queries that it is asked.
type noDB struct {
	mu     sync.Mutex // guards asked
	asked  []string
	answer func(query string) error // nil: everything succeeds
	number int64                    // what queries for a number give
}

var queryName = regexp.MustCompile(`-- name: (\w+)`)

func (db *noDB) note(sql string) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	name := queryName.FindStringSubmatch(sql)[1]
	db.asked = append(db.asked, name)
	if db.answer != nil {
		return db.answer(name)
	}
	return nil
}

func (db *noDB) count(query string) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(db.asked), func(name string) bool { return name != query }))
}

func (db *noDB) Exec(_ context.Context, sql string, _ ...any) (pgconn.CommandTag, error) {
	return pgconn.CommandTag{}, db.note(sql)
}

func (db *noDB) Query(_ context.Context, sql string, _ ...any) (pgx.Rows, error) {
	return nil, errors.Join(db.note(sql), errors.New("not expected here"))
}

func (db *noDB) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	return oneRow{db.note(sql), db.number}
}

type oneRow struct {
	err    error
	number int64
}

func (r oneRow) Scan(dest ...any) error {
	if n, ok := dest[0].(*int64); ok {
		*n = r.number
	}
	return r.err
}

// calls is a driver that is a function.
type calls func(ctx context.Context, ref driver.Ref) driver.Outcome

func (c calls) Apply(ctx context.Context, obj driver.Object) driver.Outcome { return c(ctx, obj.Ref) }
func (c calls) Delete(ctx context.Context, ref driver.Ref) driver.Outcome   { return c(ctx, ref) }
func (calls) Close(context.Context) error                                   { return nil }

func testOwner(t *testing.T, drv driver.Driver, change func(*Config)) (*Owner, *noDB) {
	t.Helper()
	m := metrics.New(prometheus.NewRegistry())
	cfg := Config{
		Name: "eu", Instance: "00000000-0000-0000-0000-000000000001",
		Grant: lease.NewGrant("eu", 1, "00000000-0000-0000-0000-000000000001", 1, 1000*time.Hour), Driver: drv,
		Feed: outbox.NewFeed(nil, m), Catalog: &desired.Catalog{}, Concurrency: 4, Timeout: 5 * time.Second,
		Backoff: testBackoff, Guard: config.Guard{Window: time.Minute}.Limits(), Memory: NewMemory(), Logger: slog.New(slog.DiscardHandler), Metrics: m,
	}
	if change != nil {
		change(&cfg)
	}
	o := NewOwner(cfg, func(context.Context, int32) error { return nil })
	db := &noDB{}
	o.queries, o.guard = store.New(db), guard.New(cfg.Guard, 0)
	return o, db
}

// elapse lets a synctest bubble's time pass, until everything in it waits again.
func elapse(d time.Duration) { time.Sleep(d); synctest.Wait() }
