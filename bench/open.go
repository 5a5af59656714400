package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// openParts is how many stretches the life of an open transaction is looked at in.
const openParts = 10

// openBlocks is how many blocks of the product's own tables and indexes have been touched.
const openBlocks = `SELECT sum(coalesce(heap_blks_hit, 0) + coalesce(heap_blks_read, 0) + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))
	FROM pg_statio_user_tables WHERE schemaname = 'reconciler'`

// openStretch is what was seen in one of them.
type openStretch struct{ blocks, p99 float64 }

// benchOpen makes changes beside a transaction that only reads and stays open: PostgreSQL keeps every version of every row
// meanwhile, and what is updated in place costs more with each.
func benchOpen(ctx context.Context, l *lab) ([]Figure, error) {
	if err := l.fresh(ctx, writtenSchema()...); err != nil {
		return nil, err
	}
	s, stop, err := l.within(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stop() }()
	reader, err := l.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = reader.Rollback(ctx) }() // a broken connection is gone with it
	if _, err := reader.Exec(ctx, "SELECT count(*) FROM tracked"); err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	const rate = 200
	length := max(5*time.Second, time.Duration(float64(l.open)*l.scale))
	changes := rate * int(length/openParts/time.Millisecond) / 1000
	var seen [openParts]openStretch
	for part := range seen {
		before, err := l.number(ctx, openBlocks)
		if err != nil {
			return nil, err
		}
		times, err := measure.Changes(ctx, s, l.pace("tracked", rate, changes))
		if err != nil {
			return nil, err
		}
		after, err := l.number(ctx, openBlocks)
		if err != nil {
			return nil, err
		}
		seen[part] = openStretch{blocks: (after - before) / float64(len(times)), p99: measure.Percentile(times, .99)}
	}
	what := fmt.Sprintf("200 changes/s beside a transaction that reads, open for %s: ", length)
	first, last := seen[0], seen[openParts-1]
	return []Figure{
		Figure{Bench: "open", What: what + "blocks for each change, last tenth", Unit: "", Values: []float64{last.blocks}, Against: "first tenth", Limits: []float64{first.blocks}}.atMost(1.5, "flat: ≤ 1.5"),
		Figure{Bench: "open", What: what + "p99, last tenth", Unit: "ms", Values: []float64{last.p99}, Against: "first tenth", Limits: []float64{first.p99}}.atMost(1.5, "flat: ≤ 1.5"),
	}, nil
}
