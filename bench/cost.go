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
func benchCost(ctx context.Context, l *lab) ([]Figure, error) {
	changes := l.rows(writtenRows)
	if err := l.fresh(ctx, append(writtenSchema(), oneByOne)...); err != nil {
		return nil, err
	}
	write := func(table string, pause float64) []string {
		return []string{fmt.Sprintf("CALL one_by_one('%s', %d, %d, %g)", table, changes, writtenRows, pause)}
	}
	// Once before: after a checkpoint each page is in the WAL whole, which depends on how often that is.
	if err := l.exec(ctx, append(write("plain", 0), write("tracked", 0)...)...); err != nil {
		return nil, err
	}
	values := map[string][]float64{}
	each := func(name, sql string, work func() error) error {
		before, err := l.number(ctx, sql)
		if err != nil {
			return err
		}
		if err := work(); err != nil {
			return err
		}
		after, err := l.number(ctx, sql)
		values[name] = append(values[name], (after-before)/float64(changes))
		return err
	}
	written := func(table string, pause float64) func() error {
		return func() error { return l.exec(ctx, write(table, pause)...) }
	}
	for range l.rounds {
		if err := each("plain", walSQL, written("plain", 0)); err != nil {
			return nil, err
		}
		if err := each("outbox", `SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relnamespace = 'reconciler'::regnamespace AND c.relname ~ '^outbox_[0-9]+$'`, func() error {
			return each("stopped", walSQL, written("tracked", 0))
		}); err != nil {
			return nil, err
		}
	}
	p, err := l.run(discard(target))
	if err != nil {
		return nil, err
	}
	if err := l.settled(ctx); err != nil {
		return nil, err
	}
	for range l.rounds {
		began, err := p.cpu()
		if err != nil {
			return nil, err
		}
		if err := each("transactions", `SELECT sum(calls) FROM (SELECT xact_commit + xact_rollback AS calls FROM pg_stat_database WHERE datname = current_database()) AS s`, func() error {
			return each("ticks", `SELECT revision FROM reconciler.ticks ORDER BY revision DESC LIMIT 1`, func() error {
				return each("active", walSQL, func() error {
					if err := written("tracked", 1./costRate)(); err != nil {
						return err
					}
					return l.settled(ctx)
				})
			})
		}); err != nil {
			return nil, err
		}
		ended, err := p.cpu()
		if err != nil {
			return nil, err
		}
		values["cpu"] = append(values["cpu"], float64((ended-began).Microseconds())/float64(changes))
	}
	ledger, err := l.number(ctx, `SELECT pg_total_relation_size('reconciler.ledger') / greatest(count(*), 1) FROM reconciler.ledger`)
	if err != nil {
		return nil, err
	}
	values["ledger"] = []float64{ledger}
	return costFigures(values), p.stop()
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
