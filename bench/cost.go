package main

import (
	"context"
	"fmt"
)

// costRate is the rate, in changes a second, at which the product's part is measured: its batches are small then.
const costRate = 500

// oneByOne updates rows of a table, each in a transaction of its own, with a pause after each.
const oneByOne = `CREATE PROCEDURE one_by_one(relation regclass, changes int, rows int, pause float8) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..changes LOOP
		EXECUTE format('UPDATE %s SET n = n + 1 WHERE id = $1', relation) USING 1 + i % rows;
		COMMIT;
		PERFORM pg_sleep(pause);
	END LOOP;
END $$`

// benchCost measures what one change and one object cost: bytes of WAL and on disk, transactions, processor time.
func benchCost(ctx context.Context, l *lab) []Figure {
	changes := l.rows(writtenRows)
	l.fresh(ctx, append(writtenSchema(), oneByOne)...)
	write := func(table string, pause float64) []string {
		return []string{fmt.Sprintf("CALL one_by_one('%s', %d, %d, %g)", table, changes, writtenRows, pause)}
	}
	// Once before: after a checkpoint each page is in the WAL whole, which depends on how often that is.
	l.exec(ctx, append(write("plain", 0), write("tracked", 0)...)...)
	values := map[string][]float64{}
	each := func(name, sql string, work func()) {
		before := l.number(ctx, sql)
		work()
		values[name] = append(values[name], (l.number(ctx, sql)-before)/float64(changes))
	}
	written := func(table string, pause float64) func() {
		return func() { l.exec(ctx, write(table, pause)...) }
	}
	for range l.rounds {
		each("plain", walSQL, written("plain", 0))
		each("outbox", `SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relname ~ '^outbox_[0-9]+$'`, func() {
			each("stopped", walSQL, written("tracked", 0))
		})
	}
	p := l.run(discard(target))
	l.settled(ctx)
	for range l.rounds {
		began := p.cpu()
		each("transactions", `SELECT sum(calls) FROM (SELECT xact_commit + xact_rollback AS calls FROM pg_stat_database WHERE datname = current_database()) AS s`, func() {
			each("ticks", `SELECT revision FROM reconciler.ticks ORDER BY revision DESC LIMIT 1`, func() {
				each("active", walSQL, func() {
					written("tracked", 1./costRate)()
					l.settled(ctx)
				})
			})
		})
		ended := p.cpu()
		values["cpu"] = append(values["cpu"], float64((ended-began).Microseconds())/float64(changes))
	}
	ledger := l.number(ctx, `SELECT pg_total_relation_size('reconciler.ledger') / greatest(count(*), 1) FROM reconciler.ledger`)
	values["ledger"] = []float64{ledger}
	p.stop()
	return costFigures(values)
}

const walSQL = `SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn`

func costFigures(values map[string][]float64) []Figure {
	figure := func(what, unit, name, against, limit string) Figure {
		f := Figure{Bench: "cost", What: what, Unit: unit, Values: values[name]}
		if against != "" {
			f.Against, f.Limits = against, values[limit]
		}
		return f
	}
	// Those of the writer, which the statistics count too.
	for i := range values["transactions"] {
		values["transactions"][i] = max(0, values["transactions"][i]-1)
	}
	at := fmt.Sprintf(", run active, %d changes/s", costRate)
	return []Figure{
		figure("WAL of a one-row update, run stopped", "bytes", "stopped", "untracked", "plain"),
		figure("WAL of a change"+at, "bytes", "active", "untracked", "plain"),
		figure("outbox on disk, for each change", "bytes", "outbox", "", ""),
		figure("ledger on disk, for each object, after updates", "bytes", "ledger", "", ""),
		figure("revisions for each change"+at, "", "ticks", "", ""),
		figure("the product's transactions for each change"+at, "", "transactions", "", ""),
		figure("the product's processor time for each change"+at, "µs", "cpu", "", ""),
	}
}
