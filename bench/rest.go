package main

import (
	"context"
	"fmt"
	"time"
)

// benchRest measures what the product costs when nothing changes, and how soon it works when there is much in the ledger.
func benchRest(ctx context.Context, l *lab) []Figure {
	objects := l.rows(100_000)
	p := l.begin(ctx, objectsSchema(objects), discard(target))
	// Only the product's transactions are to be counted.
	l.exec(ctx, `ALTER SYSTEM SET autovacuum = off`, `SELECT pg_reload_conf()`)
	// A session writes its statistics up to ten seconds later: those of the sync are not to be counted. And the leader goes to sleep first.
	time.Sleep(max(time.Second, time.Duration(l.scale*float64(20*time.Second))))
	const statements = `SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`
	watch := max(5*time.Second, time.Duration(l.scale*float64(time.Minute)))
	began := time.Now()
	before := l.number(ctx, statements)
	cpu := p.cpu()
	time.Sleep(watch)
	after := l.number(ctx, statements)
	spent := p.cpu()
	l.exec(ctx, `ALTER SYSTEM RESET autovacuum`, `SELECT pg_reload_conf()`)
	seconds := time.Since(began).Seconds()
	// leader, listener, leases, owner, sync, steward
	const loops = 6
	figures := []Figure{
		Figure{Bench: "idle", What: fmt.Sprintf("%d objects in sync: transactions for each of %d loops", objects, loops), Unit: "/s", Values: []float64{(after - before) / seconds / loops}}.atMost(.2, "≤ 0.2/s"),
		Figure{Bench: "idle", What: "processor time", Unit: "% of a core", Values: []float64{100 * (spent - cpu).Seconds() / seconds}}.atMost(.2, "≤ 0.2 %"),
	}
	p.stop()
	return append(figures, l.firstLive(ctx)...)
}

// firstLive measures from the start of the process until a change made meanwhile is applied.
func (l *lab) firstLive(ctx context.Context) []Figure {
	objects := l.rows(1_000_000)
	p := l.begin(ctx, append(objectsSchema(objects), `CREATE TABLE others (id int PRIMARY KEY)`, `SELECT reconciler.track('other', 'others', '{id}', '''other''')`), discard(target), discard("other"))
	p.stop()
	l.exec(ctx, `VACUUM ANALYZE reconciler.ledger`, `CHECKPOINT`)
	var took []float64
	for round := range l.rounds {
		began := time.Now()
		p = l.run(discard(target), discard("other"))
		l.arrival(ctx, round+1)
		took = append(took, time.Since(began).Seconds())
		p.stop()
	}
	return []Figure{Figure{Bench: "start", What: fmt.Sprintf("to the first live apply, %d objects in the ledger", objects), Unit: "s", Values: took}.atMost(1, "≤ 1 s")}
}

// benchTargets measures the same changes for one target and for many.
func benchTargets(ctx context.Context, l *lab) []Figure {
	changes := l.rows(50_000)
	crowd := []int{1, 10, 100, 1000}
	if l.scale < .1 {
		crowd = crowd[:3]
	}
	rates, connections := map[int][]float64{}, map[int][]float64{}
	for range min(l.rounds, 3) {
		for _, n := range crowd {
			l.fresh(ctx,
				`CREATE TABLE objects (id int PRIMARY KEY, target text NOT NULL, n int NOT NULL DEFAULT 0) WITH (fillfactor = 50)`,
				fmt.Sprintf(`INSERT INTO objects SELECT i, 't' || i %% %d FROM generate_series(1, %d) AS i`, n, changes),
				`SELECT reconciler.track('object', 'objects', '{id}', 'target')`, `CREATE INDEX ON objects (target, id)`, `VACUUM ANALYZE`)
			targets := make([]map[string]any, n)
			for i := range targets {
				targets[i] = discard(fmt.Sprint("t", i))
			}
			p := l.run(targets...)
			l.until(ctx, fmt.Sprintf(`SELECT (count(*) = %d)::int FROM reconciler.status WHERE state = 'ok'`, n))
			began := time.Now()
			l.exec(ctx, `UPDATE objects SET n = n + 1`)
			l.settled(ctx)
			rates[n] = append(rates[n], float64(changes)/time.Since(began).Seconds())
			sessions := l.number(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'reconciler%'`)
			connections[n] = append(connections[n], sessions)
			p.stop()
		}
	}
	var figures []Figure
	for _, n := range crowd[1:] {
		figures = append(figures,
			Figure{Bench: "targets", What: fmt.Sprintf("%d changes over %d targets", changes, n), Unit: "changes/s", Values: rates[n], Against: "1 target", Limits: rates[1]}.atLeast(1/1.5, "≥ 0.67"),
			Figure{Bench: "targets", What: fmt.Sprintf("connections, %d targets", n), Unit: "", Values: connections[n]}.atMost(14, "constant: ≤ 14"))
	}
	return figures
}
