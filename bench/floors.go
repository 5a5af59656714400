package main

import (
	"context"
	"fmt"
	"time"
)

// What a sync and a backlog cannot do without, each in one or two statements over all objects: no pages, no process, no call.
// The nested loops that the planner takes for tables it knows nothing of would take hours.
const (
	serial = `SET LOCAL enable_nestloop = off; SET LOCAL max_parallel_workers_per_gather = 0; `
	hash   = `substr(sha256(convert_to(d.spec::text, 'UTF8')), 1, 16)`

	makeFloor = `DROP TABLE IF EXISTS floor; CREATE TABLE floor (LIKE reconciler.ledger INCLUDING ALL)`

	comparing = serial + `SELECT 1 / (count(*) = %d)::int FROM reconciler.desired_object d JOIN reconciler.ledger l ON l.key = d.key COLLATE "C"
		WHERE d.running AND l.state = 'applied' AND l.applied_hash = ` + hash

	beginning = serial + `INSERT INTO floor (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT 1, 1, d.key, 'pending', true, false, clock_timestamp() FROM reconciler.desired_object d WHERE d.running`
	recording = serial + `UPDATE floor l SET state = 'applied', present = true, next_attempt_at = NULL, applied_hash = ` + hash + `, applied_at = clock_timestamp()
		FROM reconciler.desired_object d WHERE l.key = d.key COLLATE "C"`

	drainingFloor = serial + `UPDATE floor l SET applied_hash = ` + hash + `, applied_at = clock_timestamp()
		FROM (SELECT DISTINCT key FROM reconciler.outbox) AS o JOIN reconciler.desired_object d ON d.key = o.key WHERE l.key = d.key COLLATE "C"`
)

// compared returns how long one statement takes that compares every row with its ledger entry. It fails if one differs.
func (l *lab) compared(ctx context.Context, rows int) time.Duration {
	return l.timed(ctx, fmt.Sprintf(comparing, rows))
}

// written returns how long it takes to write a ledger row for every object before it is called for, and the result after.
func (l *lab) written(ctx context.Context) time.Duration {
	l.exec(ctx, makeFloor)
	took := l.timed(ctx, beginning, recording)
	l.exec(ctx, `DROP TABLE floor`, `CHECKPOINT`)
	return took
}

// recorded returns how long one statement takes that reads the objects of the outbox and writes their results.
func (l *lab) recorded(ctx context.Context) time.Duration {
	l.exec(ctx, makeFloor, `INSERT INTO floor SELECT * FROM reconciler.ledger`, `VACUUM ANALYZE floor`, `CHECKPOINT`)
	took := l.timed(ctx, drainingFloor)
	l.exec(ctx, `DROP TABLE floor`, `CHECKPOINT`)
	return took
}
