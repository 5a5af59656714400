package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// behind is for how long the oldest change that is not recorded has been known, in seconds.
const behind = `SELECT coalesce(extract(epoch FROM clock_timestamp() - min(k.at)), 0) FROM reconciler.ticks k, reconciler.target_cursors c
	WHERE c.target = 'sink' AND k.revision > c.revision`

// sample calls a function at an interval until its context ends.
func sample(ctx context.Context, every time.Duration, look func()) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := attempt(look); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// during calls look at an interval while work is done.
func during(ctx context.Context, every time.Duration, look func(), work func(context.Context)) {
	group, groupCtx := errgroup.WithContext(ctx)
	sampling, stop := context.WithCancel(groupCtx)
	group.Go(func() error { return sample(sampling, every, look) })
	group.Go(func() error { defer stop(); return attempt(func() { work(groupCtx) }) })
	check(group.Wait())
}

// benchSustained has writers commit as fast as they can for ten minutes.
func benchSustained(ctx context.Context, l *lab) []Figure {
	p := l.begin(ctx, writtenSchema(), discard(target))
	length := max(time.Second, time.Duration(l.scale*float64(10*time.Minute)))
	var (
		lags    []float64
		rate    float64
		changes int
	)
	began := time.Now()
	during(ctx, length/200, func() {
		lags = append(lags, l.number(ctx, behind))
	}, func(ctx context.Context) {
		var times []time.Duration
		rate, times = l.commits(ctx, "tracked", 16, length)
		changes = len(times)
	})
	l.settled(ctx)
	delivered := float64(changes) / time.Since(began).Seconds()
	peak, _ := p.memory()
	half := len(lags) / 2
	if half == 0 {
		check(fmt.Errorf("no sample within %s", length))
	}
	what := fmt.Sprintf("16 writers at full speed for %s", length)
	p.stop()
	return []Figure{
		Figure{Bench: "sustained", What: what + ", worked off", Unit: "changes/s", Values: []float64{delivered}, Against: "committed", Limits: []float64{rate}}.atLeast(.98, "keeps up"),
		Figure{Bench: "sustained", What: "age of the oldest change that is not recorded, second half, most", Unit: "s", Values: []float64{slices.Max(lags[half:])}}.atMost(1, "bounded"),
		{Bench: "sustained", What: "the same, first half", Unit: "s", Values: []float64{slices.Max(lags[:half])}},
		Figure{Bench: "sustained", What: "most memory of the process", Unit: "MiB", Values: []float64{peak}}.atMost(100, "≤ 100 MiB"),
	}
}

const (
	// A day of churn is pressed into a quarter of an hour, in statements of so many rows.
	churnLength = 15 * time.Minute
	churnRows   = 500
)

// stretch is what was seen in a part of the time: the most of everything.
type stretch struct {
	sizes  map[string]float64 // MiB with indexes, by what
	behind float64            // seconds
	reads  float64            // rows read for each change
}

// churnSizes are the things that must not grow, each a query for bytes.
var churnSizes = map[string]string{
	"outbox": `SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'reconciler.outbox'::regclass`,
	"ticks":  `SELECT pg_total_relation_size('reconciler.ticks')`,
	"ledger": `SELECT pg_total_relation_size('reconciler.ledger')`,
}

// rowsRead is how many rows all sessions have read from tables and indexes; it is told with a delay of a second.
const rowsRead = `SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables) + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)`

// benchChurn changes a hundred thousand objects five million times at a steady rate; some of the rows go and come back.
func benchChurn(ctx context.Context, l *lab) []Figure {
	objects, changes := l.rows(100_000), l.rows(5_000_000)
	p := l.begin(ctx, objectsSchema(objects), discard(target))
	const parts = 3
	statements := max(parts, changes/churnRows)
	pause := time.Duration(l.scale * float64(churnLength) / float64(statements))
	var seen [parts]stretch
	for part := range seen {
		seen[part] = l.churn(ctx, objects, statements/parts, pause)
	}
	l.settled(ctx)
	peak, _ := p.memory()
	middle, last := seen[1], seen[2]
	flat := func(what, unit string, value, before, most float64) Figure {
		return Figure{Bench: "churn", What: what, Unit: unit, Values: []float64{value}, Against: "middle third", Limits: []float64{before}}.atMost(most, "flat")
	}
	var figures []Figure
	for _, what := range []string{"outbox", "ticks", "ledger"} {
		figures = append(figures, flat(fmt.Sprintf("%d changes of %d objects, last third: %s with indexes", changes, objects, what), "MiB", last.sizes[what], middle.sizes[what], 1.25))
	}
	p.stop()
	return append(figures,
		flat("rows read for each change", "", last.reads, middle.reads, 1.1),
		Figure{Bench: "churn", What: "age of the oldest change that is not recorded, most", Unit: "s", Values: []float64{max(seen[0].behind, middle.behind, last.behind)}}.atMost(2, "bounded"),
		Figure{Bench: "churn", What: "most memory of the process", Unit: "MiB", Values: []float64{peak}}.atMost(100, "≤ 100 MiB"),
	)
}

// churn makes statements, one each pause, and looks at what must not grow.
func (l *lab) churn(ctx context.Context, objects, statements int, pause time.Duration) stretch {
	s := stretch{sizes: map[string]float64{}}
	look := func() {
		for what, sql := range churnSizes {
			size := l.number(ctx, sql)
			s.sizes[what] = max(s.sizes[what], size/(1<<20))
		}
		s.behind = max(s.behind, l.number(ctx, behind))
	}
	before := l.number(ctx, rowsRead)
	changed := int64(0)
	during(ctx, max(10*time.Millisecond, pause*time.Duration(statements)/100), look, func(ctx context.Context) {
		ticker := time.NewTicker(max(1, pause))
		defer ticker.Stop()
		for n := range statements {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				check(ctx.Err())
			}
			changed += l.churnOnce(ctx, objects, n)
		}
	})
	s.reads = (l.number(ctx, rowsRead) - before) / float64(max(1, changed))
	look()
	return s
}

// churnOnce updates rows, but for each tenth statement, which deletes them, and the one after that, which brings them back.
func (l *lab) churnOnce(ctx context.Context, objects, n int) int64 {
	first := 1 + n/10*churnRows%objects
	sql, args := `UPDATE objects SET n = n + 1 WHERE id = ANY ($1)`, []any{ids(objects)}
	switch n % 10 {
	case 0:
		sql, args = `DELETE FROM objects WHERE id BETWEEN $1::int AND $2::int`, []any{first, min(objects, first+churnRows-1)}
	case 1:
		sql, args = `INSERT INTO objects SELECT generate_series($1::int, $2::int)`, []any{first, min(objects, first+churnRows-1)}
	}
	tag, err := l.pool.Exec(ctx, sql, args...)
	if err != nil {
		check(fmt.Errorf("%s: %w", sql, err))
	}
	return tag.RowsAffected()
}

// ids returns as many ids as a statement changes, by chance.
func ids(objects int) []int32 {
	all := make([]int32, churnRows)
	for i := range all {
		all[i] = rand.Int32N(int32(objects)) + 1
	}
	return all
}
