package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/measure"
)

const (
	// openParts is how many stretches the life of an open transaction is looked at in.
	openParts = 10
	// openRate is the number of rows changed per second. Each row changes once in each part: a row that changes a hundred times
	// has a hundred versions, whatever the design, and these would hide everything else.
	openRate = 200
	// Each part ends with openApplies applies, one after the other, each of openObjects objects that have not changed before.
	openApplies, openObjects = 10, 100
)

// openBlocks is how many blocks were touched until now: of the ledger and of the tracked table, where an object that changed
// ten times has ten versions, and of everything else that is the product's.
const openBlocks = `
SELECT sum(b.n) FILTER (WHERE s.schemaname = 'reconciler' AND s.relname <> 'ledger')::float8,
       sum(b.n) FILTER (WHERE s.relid = 'reconciler.ledger'::regclass)::float8, sum(b.n) FILTER (WHERE s.relid = 'objects'::regclass)::float8
FROM pg_statio_user_tables AS s, LATERAL (SELECT coalesce(s.heap_blks_hit, 0) + coalesce(s.heap_blks_read, 0) + coalesce(s.idx_blks_hit, 0) + coalesce(s.idx_blks_read, 0)) AS b (n)`

// openTouched is what it returns, or a difference of two.
type openTouched struct{ rest, ledger, tracked float64 }

// each is how many blocks of a kind each of n things touched since before.
func (t openTouched) each(before openTouched, n float64) openTouched {
	return openTouched{rest: (t.rest - before.rest) / n, ledger: (t.ledger - before.ledger) / n, tracked: (t.tracked - before.tracked) / n}
}

// openSizes is what the product's tables take, in MiB: all but the ledger, and the ledger.
const (
	openSize   = `SELECT sum(pg_total_relation_size(relid)) / 1048576.0 FROM pg_statio_user_tables WHERE schemaname = 'reconciler' AND relname <> 'ledger'`
	openLedger = `SELECT pg_total_relation_size('reconciler.ledger') / 1048576.0`
)

// openStretch is what was seen in a part.
type openStretch struct {
	change       openTouched // blocks for each change
	apply        openTouched // blocks for each object of an apply
	p50, p99     float64     // milliseconds
	cpu          float64     // microseconds of this process for each change
	memory       float64     // MiB, at the end
	size, ledger float64     // MiB, at the end
}

// benchOpen makes changes beside a transaction that only reads and stays open: PostgreSQL keeps every version of every row
// meanwhile, and what is updated in place costs more with each.
func benchOpen(ctx context.Context, l *lab) ([]Figure, error) {
	length := max(5*time.Second, time.Duration(float64(l.open)*l.scale))
	changes := openRate * int(length/openParts/time.Millisecond) / 1000
	if err := l.fresh(ctx, objectsSchema(changes+openParts*openApplies*openObjects)...); err != nil {
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
	if _, err := reader.Exec(ctx, "SELECT count(*) FROM objects"); err != nil {
		return nil, fmt.Errorf("take a snapshot: %w", err)
	}
	var seen [openParts]openStretch
	for part := range seen {
		if seen[part], err = l.beside(ctx, s, part, changes); err != nil {
			return nil, err
		}
		// A soak takes hours: what was seen is not to be lost with its end.
		fmt.Fprintf(os.Stderr, "open: part %d of %d: %+v\n", part+1, openParts, seen[part])
	}
	return openFigures(length, seen[0], seen[openParts-1]), nil
}

// beside makes the changes and the applies of a part.
func (l *lab) beside(ctx context.Context, s *measure.Sink, part, changes int) (seen openStretch, err error) {
	before, err := l.touched(ctx)
	if err != nil {
		return seen, err
	}
	cpu, err := cpuOf(os.Getpid())
	if err != nil {
		return seen, err
	}
	times, err := measure.Changes(ctx, s, measure.Pace{Pool: l.pool, Table: "objects", Rows: changes, Rate: openRate, Changes: changes})
	if err != nil {
		return seen, err
	}
	made := float64(len(times))
	spent, err := cpuOf(os.Getpid())
	if err != nil {
		return seen, err
	}
	seen.cpu = float64((spent - cpu).Microseconds()) / made
	seen.p50, seen.p99 = measure.Percentile(times, .5), measure.Percentile(times, .99)
	changed, err := l.touched(ctx)
	if err != nil {
		return seen, err
	}
	seen.change = changed.each(before, made)
	for apply := range openApplies {
		first := changes + (part*openApplies+apply)*openObjects
		if err := l.exec(ctx, fmt.Sprintf(`BEGIN; SELECT reconciler.begin_apply('bench'); UPDATE objects SET n = n + 1 WHERE id > %d AND id <= %d; COMMIT`, first, first+openObjects)); err != nil {
			return seen, err
		}
		if err := l.until(ctx, `SELECT (count(*) = 0)::int FROM reconciler.applies WHERE state <> 'completed'`); err != nil {
			return seen, err
		}
	}
	applied, err := l.touched(ctx)
	if err != nil {
		return seen, err
	}
	seen.apply = applied.each(changed, openApplies*openObjects)
	if seen.size, err = l.number(ctx, openSize); err != nil {
		return seen, err
	}
	if seen.ledger, err = l.number(ctx, openLedger); err != nil {
		return seen, err
	}
	_, seen.memory, err = memoryOf(os.Getpid())
	return seen, err
}

func (l *lab) touched(ctx context.Context) (t openTouched, err error) {
	// A session that rests tells what it touched up to ten seconds later.
	time.Sleep(max(time.Second, time.Duration(min(1, l.scale)*float64(11*time.Second))))
	if err := l.pool.QueryRow(ctx, openBlocks).Scan(&t.rest, &t.ledger, &t.tracked); err != nil {
		return t, fmt.Errorf("read the blocks touched: %w", err)
	}
	return t, nil
}

func openFigures(length time.Duration, first, last openStretch) []Figure {
	figure := func(what, unit string, of func(openStretch) float64) Figure {
		return Figure{
			Bench: "open", What: fmt.Sprintf("200 changes/s beside a transaction that reads, open for %s: %s, last tenth", length, what), Unit: unit,
			Values: []float64{of(last)}, Against: "first tenth", Limits: []float64{of(first)},
		}
	}
	const most, flat = 1.5, "flat: ≤ 1.5"
	return []Figure{
		figure("blocks for each change, without the ledger", "", func(s openStretch) float64 { return s.change.rest }).atMost(most, flat),
		figure("blocks of the ledger for each change (ten versions of each object at the end)", "", func(s openStretch) float64 { return s.change.ledger }),
		figure("blocks of the tracked table for each change (the same)", "", func(s openStretch) float64 { return s.change.tracked }),
		figure("blocks for each object of an apply (none changed before)", "", func(s openStretch) float64 { return s.apply.rest + s.apply.ledger }).atMost(most, flat),
		figure("p50", "ms", func(s openStretch) float64 { return s.p50 }).atMost(most, flat),
		figure("p99", "ms", func(s openStretch) float64 { return s.p99 }).atMost(most, flat),
		figure("processor time of the process for each change, the writers' included", "µs", func(s openStretch) float64 { return s.cpu }).atMost(most, flat),
		figure("memory of the process, the writers' included", "MiB", func(s openStretch) float64 { return s.memory }).atMost(most, flat),
		figure("size of the ledger", "MiB", func(s openStretch) float64 { return s.ledger }),
		figure("size of the product's other tables", "MiB", func(s openStretch) float64 { return s.size }),
	}
}
