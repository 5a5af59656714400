package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// objectsSchema makes a tracked table with that many rows, and an untracked one that is alike.
func objectsSchema(rows int) []string {
	return []string{
		`CREATE TABLE objects (id int PRIMARY KEY, payload text NOT NULL DEFAULT repeat('x', 100), n int NOT NULL DEFAULT 0) WITH (fillfactor = 50);
		CREATE TABLE untracked (LIKE objects INCLUDING ALL) WITH (fillfactor = 50)`,
		fmt.Sprintf(`INSERT INTO objects SELECT generate_series(1, %d)`, rows),
		`INSERT INTO untracked SELECT * FROM objects`,
		`SELECT reconciler.track('object', 'objects', '{id}', '''sink''')`,
		`VACUUM ANALYZE`, `CHECKPOINT`,
	}
}

// benchBulk measures one statement that changes every row: what it takes, and what others feel meanwhile.
func benchBulk(ctx context.Context, l *lab) ([]Figure, error) {
	rows := l.rows(1_000_000)
	p, err := l.begin(ctx, append(objectsSchema(rows), `CREATE TABLE others (id int PRIMARY KEY)`, `SELECT reconciler.track('other', 'others', '{id}', '''other''')`), discard(target), discard("other"))
	if err != nil {
		return nil, err
	}
	_, before, err := p.memory()
	if err != nil {
		return nil, err
	}
	var tracked, plain, delays, drains []float64
	next := 0
	for range min(l.rounds, 3) {
		one, err := l.timed(ctx, `UPDATE untracked SET n = n + 1`)
		if err != nil {
			return nil, err
		}
		if err := l.exec(ctx, `VACUUM untracked`, `CHECKPOINT`); err != nil {
			return nil, err
		}
		two, err := l.timed(ctx, `UPDATE objects SET n = n + 1`)
		if err != nil {
			return nil, err
		}
		plain, tracked = append(plain, one.Seconds()), append(tracked, two.Seconds())
		began := time.Now()
		slowest := time.Duration(0)
		for upto, busy := 0.0, true; busy; {
			next++
			took, err := l.arrival(ctx, next)
			if err != nil {
				return nil, err
			}
			slowest = max(slowest, took)
			if upto == 0 { // what has arrived was committed after the rows were
				if upto, err = l.number(ctx, `SELECT max(revision) FROM reconciler.ticks`); err != nil {
					return nil, err
				}
			}
			left, err := l.number(ctx, `SELECT count(*) FROM reconciler.target_cursors WHERE target = 'sink' AND revision < $1::float8`, upto)
			if err != nil {
				return nil, err
			}
			busy = left > 0
		}
		delays, drains = append(delays, float64(slowest.Milliseconds())), append(drains, float64(rows)/time.Since(began).Seconds())
		if err := l.exec(ctx, `VACUUM objects`, `CHECKPOINT`); err != nil {
			return nil, err
		}
	}
	peak, _, err := p.memory()
	if err != nil {
		return nil, err
	}
	return []Figure{
		Figure{Bench: "bulk", What: fmt.Sprintf("UPDATE of %d rows, tracked", rows), Unit: "s", Values: tracked, Against: "untracked", Limits: plain}.atMost(2, "≤ 2.0"),
		{Bench: "bulk", What: "longest delay of another target's change meanwhile", Unit: "ms", Values: delays},
		{Bench: "bulk", What: "objects looked at and called", Unit: "/s", Values: drains},
		Figure{Bench: "bulk", What: "most memory of the process", Unit: "MiB", Values: []float64{peak}, Against: "at rest", Limits: []float64{before}}.atMost(3, "flat"),
	}, p.stop()
}

// arrival inserts a row of the other target and returns how long it takes until it is applied, to 5 ms.
func (l *lab) arrival(ctx context.Context, id int) (time.Duration, error) {
	began := time.Now()
	if err := l.exec(ctx, "INSERT INTO others VALUES ("+strconv.Itoa(id)+")"); err != nil {
		return 0, err
	}
	for {
		n, err := l.number(ctx, `SELECT count(*) FROM reconciler.ledger WHERE target_id = (SELECT id FROM reconciler.targets WHERE name = 'other') AND key = $1 AND state = 'applied'`, strconv.Itoa(id))
		if err != nil || n > 0 {
			return time.Since(began), err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// passed waits until the target's cursor has passed everything that is committed; a sync that began with the process may go on.
func (l *lab) passed(ctx context.Context) error {
	snapshot := ""
	if err := l.pool.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&snapshot); err != nil {
		return err
	}
	var upto *int64
	for ; upto == nil; time.Sleep(5 * time.Millisecond) {
		if err := l.pool.QueryRow(ctx, `SELECT reconciler.covering_revision($1::text::pg_snapshot)`, snapshot).Scan(&upto); err != nil {
			return err
		}
	}
	return l.until(ctx, fmt.Sprintf(`SELECT count(*) FROM reconciler.target_cursors WHERE target = '%s' AND revision >= %d`, target, *upto))
}

// benchDrain measures how fast a backlog is worked off: rows of the outbox that stand for a fifth as many objects.
func benchDrain(ctx context.Context, l *lab) ([]Figure, error) {
	rows := l.rows(1_000_000)
	objects := rows / 5
	var drained, copied, floors []float64
	for range min(l.rounds, 3) {
		if err := l.fresh(ctx, objectsSchema(objects)...); err != nil {
			return nil, err
		}
		p, err := l.run(discard(target))
		if err != nil {
			return nil, err
		}
		if err := l.settled(ctx); err != nil {
			return nil, err
		}
		if err := p.stop(); err != nil {
			return nil, err
		}
		for range 5 {
			if err := l.exec(ctx, `UPDATE objects SET n = n + 1`, `VACUUM objects`); err != nil {
				return nil, err
			}
		}
		if err := l.exec(ctx, `CREATE TABLE copy (LIKE reconciler.outbox)`, `CHECKPOINT`); err != nil {
			return nil, err
		}
		took, err := l.timed(ctx, `INSERT INTO copy SELECT * FROM reconciler.outbox`)
		if err != nil {
			return nil, err
		}
		copied = append(copied, float64(rows)/took.Seconds())
		if took, err = l.recorded(ctx); err != nil {
			return nil, err
		}
		floors = append(floors, float64(rows)/took.Seconds())
		if p, err = l.run(discard(target)); err != nil {
			return nil, err
		}
		if err := l.until(ctx, `SELECT count(*) FROM reconciler.targets WHERE owner IS NOT NULL`); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := l.passed(ctx); err != nil {
			return nil, err
		}
		drained = append(drained, float64(rows)/time.Since(began).Seconds())
		if err := p.stop(); err != nil {
			return nil, err
		}
	}
	return []Figure{
		Figure{Bench: "drain", What: fmt.Sprintf("%d outbox rows over %d objects", rows, objects), Unit: "rows/s", Values: drained}.atLeast(50_000, "≥ 50,000/s"),
		Figure{Bench: "drain", What: "the same", Unit: "rows/s", Values: drained, Against: "INSERT ... SELECT", Limits: copied}.atLeast(.25, "≥ 0.25"),
		{Bench: "drain", What: "their objects read and recorded in one statement, no process, no call", Unit: "rows/s", Values: floors, Against: "INSERT ... SELECT", Limits: copied},
	}, nil
}

// until polls until a query gives more than 0.
func (l *lab) until(ctx context.Context, sql string) error {
	for {
		n, err := l.number(ctx, sql)
		if err != nil || n > 0 {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// syncSeconds returns how long the last sync took.
const syncSeconds = `SELECT extract(epoch FROM finished_at - started_at) FROM reconciler.sync_runs WHERE state = 'complete' ORDER BY id DESC LIMIT 1`

// benchSync measures syncs of a million rows: in sync, first ones, and first ones to files.
func benchSync(ctx context.Context, l *lab) ([]Figure, error) {
	var figures []Figure
	memory := map[int]float64{}
	for _, rows := range []int{l.rows(100_000), l.rows(1_000_000)} {
		if err := l.fresh(ctx, objectsSchema(rows)...); err != nil {
			return nil, err
		}
		var first, synced, copied, writes, compared, written []float64
		copyRate := func() error {
			took, err := l.copyOut(ctx)
			copied = append(copied, float64(rows)/took.Seconds())
			return err
		}
		if err := copyRate(); err != nil {
			return nil, err
		}
		p, err := l.run(discard(target))
		if err != nil {
			return nil, err
		}
		if err := l.settled(ctx); err != nil {
			return nil, err
		}
		seconds, err := l.number(ctx, syncSeconds)
		if err != nil {
			return nil, err
		}
		first = append(first, float64(rows)/seconds)
		if err := p.stop(); err != nil {
			return nil, err
		}
		if err := l.exec(ctx, `VACUUM ANALYZE reconciler.ledger`, `CHECKPOINT`); err != nil {
			return nil, err
		}
		copiedFirst := copied[:1:1]
		took, err := l.written(ctx)
		if err != nil {
			return nil, err
		}
		written = append(written, float64(rows)/took.Seconds())
		if p, err = l.run(discard(target)); err != nil {
			return nil, err
		}
		copied = nil
		const ledgerWrites = `SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables WHERE relname = 'ledger'`
		for range min(l.rounds, 3) {
			if err := copyRate(); err != nil {
				return nil, err
			}
			if took, err = l.compared(ctx, rows); err != nil {
				return nil, err
			}
			compared = append(compared, float64(rows)/took.Seconds())
			before, err := l.number(ctx, ledgerWrites)
			if err != nil {
				return nil, err
			}
			if err := l.syncAgain(ctx); err != nil {
				return nil, err
			}
			seconds, err := l.number(ctx, syncSeconds)
			if err != nil {
				return nil, err
			}
			after, err := l.number(ctx, ledgerWrites)
			if err != nil {
				return nil, err
			}
			synced, writes = append(synced, float64(rows)/seconds), append(writes, after-before)
		}
		if memory[rows], _, err = p.memory(); err != nil {
			return nil, err
		}
		if err := p.stop(); err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%d rows", rows)
		figures = append(figures,
			Figure{Bench: "sync", What: name + ", in sync", Unit: "rows/s", Values: synced, Against: "COPY", Limits: copied}.atLeast(.6, "≥ 0.6"),
			Figure{Bench: "sync", What: name + ", in sync: ledger writes", Unit: "rows", Values: writes}.atMost(0, "0"),
			Figure{Bench: "sync", What: name + ": most memory", Unit: "MiB", Values: []float64{memory[rows]}}.atMost(100, "≤ 100 MiB"),
			Figure{Bench: "sync", What: name + ", first, no-op target", Unit: "rows/s", Values: first, Against: "COPY", Limits: copiedFirst}.atLeast(.25, "≥ 0.25"),
			Figure{Bench: "sync", What: name + ", compared with the ledger in one statement, no process", Unit: "rows/s", Values: compared, Against: "COPY", Limits: copied},
			Figure{Bench: "sync", What: name + ", written to the ledger before and after a call, in two statements, no process, no call", Unit: "rows/s", Values: written, Against: "COPY", Limits: copiedFirst},
		)
	}
	files, err := l.firstFiles(ctx)
	return append(figures, files...), err
}

// syncAgain asks for a sync as the interval does, and waits for its end. A resync would call for every object of a target that
// cannot list.
func (l *lab) syncAgain(ctx context.Context) error {
	if err := l.exec(ctx, fullSync); err != nil {
		return err
	}
	return l.until(ctx, syncsOver)
}

// copyOut returns how long COPY takes for what a sync reads.
func (l *lab) copyOut(ctx context.Context) (time.Duration, error) {
	conn, err := l.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	began := time.Now()
	_, err = conn.Conn().PgConn().CopyTo(ctx, null, `COPY (SELECT key, spec FROM reconciler.desired_object WHERE running) TO STDOUT`)
	return time.Since(began), err
}

// firstFiles measures the first sync to a directory against a loop that writes the same files.
func (l *lab) firstFiles(ctx context.Context) ([]Figure, error) {
	rows := l.rows(100_000)
	var ours, loops []float64
	for round := range min(l.rounds, 3) {
		if err := l.fresh(ctx, objectsSchema(rows)...); err != nil {
			return nil, err
		}
		dir, other := filepath.Join(l.dir, fmt.Sprint("files", round)), filepath.Join(l.dir, fmt.Sprint("loop", round))
		p, err := l.run(map[string]any{"name": target, "driver": "file", "options": map[string]any{"dir": dir, "fsync": false}, "sync_interval": "off"})
		if err != nil {
			return nil, err
		}
		if err := l.settled(ctx); err != nil {
			return nil, err
		}
		seconds, err := l.number(ctx, syncSeconds)
		if err != nil {
			return nil, err
		}
		ours = append(ours, float64(rows)/seconds)
		if err := p.stop(); err != nil {
			return nil, err
		}
		took, err := l.writeLoop(ctx, other)
		if err != nil {
			return nil, err
		}
		loops = append(loops, float64(rows)/took.Seconds())
		for _, made := range []string{dir, other} {
			if err := os.RemoveAll(made); err != nil {
				return nil, err
			}
		}
	}
	return []Figure{Figure{Bench: "sync", What: fmt.Sprintf("%d rows, first, files", rows), Unit: "rows/s", Values: ours, Against: "a loop that writes them", Limits: loops}.atLeast(.7, "≥ 0.7")}, nil
}

// writeLoop reads what is wanted and writes one file for each row, each under another name first.
func (l *lab) writeLoop(ctx context.Context, dir string) (time.Duration, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	began := time.Now()
	rows, err := l.pool.Query(ctx, `SELECT key, spec::text FROM reconciler.desired_object WHERE running`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var key, spec string
		if err := rows.Scan(&key, &spec); err != nil {
			return 0, err
		}
		path := filepath.Join(dir, key+".json")
		if err := os.WriteFile(path+".tmp", []byte(spec+"\n"), 0o600); err != nil {
			return 0, err
		}
		if err := os.Rename(path+".tmp", path); err != nil {
			return 0, err
		}
	}
	return time.Since(began), rows.Err()
}
