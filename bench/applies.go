package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// benchApplies measures what a rollout costs: whoever writes, the targets, and whoever looks.
func benchApplies(ctx context.Context, l *lab) []Figure {
	var figures []Figure
	for _, measure := range []func(context.Context) []Figure{l.applyWriters, l.applyRollout, l.applyLooks} {
		figures = append(figures, measure(ctx)...)
	}
	return figures
}

// applyWriters compares transactions of one row and of many that begin an apply with those that do not.
func (l *lab) applyWriters(ctx context.Context) []Figure {
	p := l.begin(ctx, writtenSchema(), discard(target))
	var figures []Figure
	for _, rows := range []int{1, 1000} {
		var with, without []float64
		for range l.rounds {
			for _, begin := range []bool{true, false} {
				took := l.transactions(ctx, max(5, int(200*l.scale)), rows, begin)
				if begin {
					with = append(with, took)
				} else {
					without = append(without, took)
				}
			}
		}
		figures = append(figures, Figure{Bench: "applies", What: fmt.Sprintf("transaction of %d rows with begin_apply", rows), Unit: "ms", Values: with, Against: "without", Limits: without})
	}
	p.stop()
	return figures
}

// transactions returns the median of the times, in ms, that so many transactions of so many rows take.
func (l *lab) transactions(ctx context.Context, n, rows int, begin bool) float64 {
	times := make([]time.Duration, 0, n)
	for i := range n {
		began := time.Now()
		check(pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
			if begin {
				must(tx.Exec(ctx, "SELECT reconciler.begin_apply('bench', strategy => 'parallel')"))
			}
			_, err := tx.Exec(ctx, "UPDATE tracked SET n = n + 1 WHERE id BETWEEN $1 AND $2", 1+i*rows%writtenRows, i*rows%writtenRows+rows)
			return err //nolint:wrapcheck // it names the statement's failure
		}))
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return measure.Percentile(times, .5)
}

// applyRollout compares a rolling apply over ten targets with the same change without one.
func (l *lab) applyRollout(ctx context.Context) []Figure {
	tasks := l.rows(10_000)
	const crowd = 10
	targets := make([]map[string]any, crowd)
	for i := range targets {
		targets[i] = discard(fmt.Sprint("t", i))
	}
	p := l.begin(ctx, []string{
		`CREATE TABLE objects (id int PRIMARY KEY, target text NOT NULL, n int NOT NULL DEFAULT 0) WITH (fillfactor = 50)`,
		fmt.Sprintf(`INSERT INTO objects SELECT i, 't' || i %% %d FROM generate_series(1, %d) AS i`, crowd, tasks),
		`CREATE INDEX ON objects (target, id)`, `SELECT reconciler.track('object', 'objects', '{id}', 'target')`, `VACUUM ANALYZE`,
	}, targets...)
	rate := map[bool][]float64{}
	for range l.rounds {
		for _, apply := range []bool{true, false} {
			sql := `UPDATE objects SET n = n + 1`
			if apply {
				sql = `BEGIN; SELECT reconciler.begin_apply('bench'); ` + sql + `; COMMIT`
			}
			began := time.Now()
			l.exec(ctx, sql)
			l.until(ctx, `SELECT (count(*) = 0)::int FROM reconciler.applies WHERE state <> 'completed'`)
			l.settled(ctx)
			rate[apply] = append(rate[apply], float64(tasks)/time.Since(began).Seconds())
		}
	}
	p.stop()
	return []Figure{{
		Bench: "applies", What: fmt.Sprintf("%d tasks, rolling over %d targets, from the statement on", tasks, crowd), Unit: "tasks/s", Values: rate[true], Against: "no apply", Limits: rate[false],
	}}
}

// applyLooks measures what it takes to show an apply of a thousand operations, and to derive its state.
func (l *lab) applyLooks(ctx context.Context) []Figure {
	operations, tasks := max(10, l.rows(1000)), l.rows(100_000)
	p := l.begin(ctx, []string{
		`CREATE TABLE objects (id int PRIMARY KEY, target text NOT NULL, n int NOT NULL DEFAULT 0)`,
		fmt.Sprintf(`INSERT INTO objects SELECT i, 't' || i %% %d FROM generate_series(1, %d) AS i`, operations, tasks),
		`SELECT reconciler.track('object', 'objects', '{id}', 'target')`,
		// Targets of no process: everything stays as it was opened.
		fmt.Sprintf(`INSERT INTO reconciler.targets (name, configured) SELECT 't' || i, false FROM generate_series(0, %d) AS i`, operations-1),
	}, discard(target))
	l.exec(ctx, `BEGIN; SELECT reconciler.begin_apply('bench'); UPDATE objects SET n = n + 1; COMMIT`)
	l.until(ctx, `SELECT count(*) FROM reconciler.applies WHERE opened_at IS NOT NULL`)
	l.exec(ctx, `ANALYZE`)
	values := map[string][]float64{}
	for range max(5, l.rounds) {
		for name, sql := range map[string]string{
			"show":   `SELECT s.*, (SELECT json_agg(t ORDER BY t.ordinal, t.target) FROM reconciler.apply_targets t WHERE t.apply = s.id) FROM reconciler.apply_status s`,
			"header": `SELECT * FROM reconciler.apply_status`,
			"derive": `SELECT reconciler.refresh_apply(id) FROM reconciler.applies`,
		} {
			took := l.timed(ctx, sql)
			values[name] = append(values[name], took.Seconds()*1000)
		}
	}
	of := fmt.Sprintf(", %d operations, %d tasks", operations, tasks)
	p.stop()
	return []Figure{
		{Bench: "applies", What: "show: header and a line for each target" + of, Unit: "ms", Values: values["show"]},
		{Bench: "applies", What: "the header alone" + of, Unit: "ms", Values: values["header"]},
		{Bench: "applies", What: "deriving the state" + of, Unit: "ms", Values: values["derive"]},
	}
}
