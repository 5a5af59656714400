package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// benchCreates measures what objects cost that the ledger does not know: they are on record before their first call. Each is
// compared with a change of a known object in the same run.
func benchCreates(ctx context.Context, l *lab) []Figure {
	const known = 10_000
	l.fresh(ctx, objectsSchema(known)...)
	s, stop := l.within(ctx)
	values := points{}
	next := known + 1
	for range l.rounds {
		for _, rate := range []int{slowRate, 200} {
			pace := measure.Pace{Pool: l.pool, Table: "objects", Rows: known, Rate: rate, Changes: max(l.rows(200), l.rows(3*rate))}
			for _, way := range []string{"update", "insert"} {
				if pace.Insert = 0; way == "insert" {
					pace.Insert = next
					next += pace.Changes
				}
				values.note(way+strconv.Itoa(rate), must(measure.Changes(ctx, s, pace)))
			}
		}
	}
	stop()
	var figures []Figure
	for _, rate := range []int{slowRate, 200} {
		for _, name := range []string{"p50", "p99"} {
			at := strconv.Itoa(rate) + " " + name
			figures = append(figures, Figure{
				Bench: "creates", What: fmt.Sprintf("%d inserts/s, %s", rate, name), Unit: "ms", Values: values["insert"+at], Against: fmt.Sprintf("%d updates/s", rate), Limits: values["update"+at],
			})
		}
	}
	return append(figures, l.bulkCreates(ctx)...)
}

// bulkCreates inserts many rows in one statement, and changes them in another.
func (l *lab) bulkCreates(ctx context.Context) []Figure {
	rows := l.rows(200_000)
	p := l.begin(ctx, objectsSchema(0), discard(target))
	var inserts, updates, inserted, updated []float64
	for round := range l.rounds {
		for _, statement := range []struct {
			sql             string
			seconds, worked *[]float64
		}{
			{fmt.Sprintf(`INSERT INTO objects SELECT generate_series(%d, %d)`, round*rows+1, (round+1)*rows), &inserts, &inserted},
			{fmt.Sprintf(`UPDATE objects SET n = n + 1 WHERE id > %d`, round*rows), &updates, &updated},
		} {
			took := l.timed(ctx, statement.sql)
			began := time.Now()
			l.passed(ctx)
			*statement.seconds = append(*statement.seconds, took.Seconds())
			*statement.worked = append(*statement.worked, float64(rows)/time.Since(began).Seconds())
			l.exec(ctx, `VACUUM objects, reconciler.ledger`, `CHECKPOINT`)
		}
	}
	p.stop()
	return []Figure{
		{Bench: "creates", What: fmt.Sprintf("INSERT of %d rows, tracked", rows), Unit: "s", Values: inserts, Against: "UPDATE of them", Limits: updates},
		{Bench: "creates", What: "objects looked at and called for the first time", Unit: "/s", Values: inserted, Against: "known ones", Limits: updated},
	}
}
