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
func benchBulk(ctx context.Context, l *lab) []Figure {
	rows := l.rows(1_000_000)
	p := l.begin(ctx, append(objectsSchema(rows), `CREATE TABLE others (id int PRIMARY KEY)`, `SELECT reconciler.track('other', 'others', '{id}', '''other''')`), discard(target), discard("other"))
	_, before := p.memory()
	var tracked, plain, delays, drains []float64
	next := 0
	for range min(l.rounds, 3) {
		one := l.timed(ctx, `UPDATE untracked SET n = n + 1`)
		l.exec(ctx, `VACUUM untracked`, `CHECKPOINT`)
		two := l.timed(ctx, `UPDATE objects SET n = n + 1`)
		plain, tracked = append(plain, one.Seconds()), append(tracked, two.Seconds())
		began := time.Now()
		slowest := time.Duration(0)
		for upto, busy := 0.0, true; busy; {
			next++
			took := l.arrival(ctx, next)
			slowest = max(slowest, took)
			if upto == 0 { // what has arrived was committed after the rows were
				upto = l.number(ctx, `SELECT max(revision) FROM reconciler.ticks`)
			}
			left := l.number(ctx, `SELECT count(*) FROM reconciler.target_cursors WHERE target = 'sink' AND revision < $1::float8`, upto)
			busy = left > 0
		}
		delays, drains = append(delays, float64(slowest.Milliseconds())), append(drains, float64(rows)/time.Since(began).Seconds())
		l.exec(ctx, `VACUUM objects`, `CHECKPOINT`)
	}
	peak, _ := p.memory()
	p.stop()
	return []Figure{
		Figure{Bench: "bulk", What: fmt.Sprintf("UPDATE of %d rows, tracked", rows), Unit: "s", Values: tracked, Against: "untracked", Limits: plain}.atMost(2, "≤ 2.0"),
		{Bench: "bulk", What: "longest delay of another target's change meanwhile", Unit: "ms", Values: delays},
		{Bench: "bulk", What: "objects looked at and called", Unit: "/s", Values: drains},
		Figure{Bench: "bulk", What: "most memory of the process", Unit: "MiB", Values: []float64{peak}, Against: "at rest", Limits: []float64{before}}.atMost(3, "flat"),
	}
}

// arrival inserts a row of the other target and returns how long it takes until it is applied, to 5 ms.
func (l *lab) arrival(ctx context.Context, id int) time.Duration {
	began := time.Now()
	l.exec(ctx, "INSERT INTO others VALUES ("+strconv.Itoa(id)+")")
	l.until(ctx, `SELECT count(*) FROM reconciler.ledger WHERE target_id = (SELECT id FROM reconciler.targets WHERE name = 'other') AND key = $1 AND state = 'applied'`, strconv.Itoa(id))
	return time.Since(began)
}

// passed waits until the target's cursor has passed everything that is committed; a sync that began with the process may go on.
func (l *lab) passed(ctx context.Context) {
	snapshot := ""
	check(l.pool.QueryRow(ctx, `SELECT pg_current_snapshot()::text`).Scan(&snapshot))
	var upto *int64
	for ; upto == nil; time.Sleep(5 * time.Millisecond) {
		check(l.pool.QueryRow(ctx, `SELECT reconciler.covering_revision($1::text::pg_snapshot)`, snapshot).Scan(&upto))
	}
	l.until(ctx, fmt.Sprintf(`SELECT count(*) FROM reconciler.target_cursors WHERE target = '%s' AND revision >= %d`, target, *upto))
}

// benchDrain measures how fast a backlog is worked off: rows of the outbox that stand for a fifth as many objects.
func benchDrain(ctx context.Context, l *lab) []Figure {
	rows := l.rows(1_000_000)
	objects := rows / 5
	var drained, copied, floors []float64
	for range min(l.rounds, 3) {
		l.fresh(ctx, objectsSchema(objects)...)
		p := l.run(discard(target))
		l.settled(ctx)
		p.stop()
		for range 5 {
			l.exec(ctx, `UPDATE objects SET n = n + 1`, `VACUUM objects`)
		}
		l.exec(ctx, `CREATE TABLE copy (LIKE reconciler.outbox)`, `CHECKPOINT`)
		took := l.timed(ctx, `INSERT INTO copy SELECT * FROM reconciler.outbox`)
		copied = append(copied, float64(rows)/took.Seconds())
		took = l.recorded(ctx)
		floors = append(floors, float64(rows)/took.Seconds())
		p = l.run(discard(target))
		l.until(ctx, `SELECT count(*) FROM reconciler.targets WHERE owner IS NOT NULL`)
		began := time.Now()
		l.passed(ctx)
		drained = append(drained, float64(rows)/time.Since(began).Seconds())
		p.stop()
	}
	return []Figure{
		Figure{Bench: "drain", What: fmt.Sprintf("%d outbox rows over %d objects", rows, objects), Unit: "rows/s", Values: drained}.atLeast(50_000, "≥ 50,000/s"),
		Figure{Bench: "drain", What: "the same", Unit: "rows/s", Values: drained, Against: "INSERT ... SELECT", Limits: copied}.atLeast(.25, "≥ 0.25"),
		{Bench: "drain", What: "their objects read and recorded in one statement, no process, no call", Unit: "rows/s", Values: floors, Against: "INSERT ... SELECT", Limits: copied},
	}
}

// until polls until a query gives more than 0.
func (l *lab) until(ctx context.Context, sql string, args ...any) {
	for l.number(ctx, sql, args...) == 0 {
		time.Sleep(5 * time.Millisecond)
	}
}

// syncSeconds returns how long the last sync took.
const syncSeconds = `SELECT extract(epoch FROM finished_at - started_at) FROM reconciler.sync_runs WHERE state = 'complete' ORDER BY id DESC LIMIT 1`

// benchSync measures syncs of a million rows: in sync, first ones, and first ones to files.
func benchSync(ctx context.Context, l *lab) []Figure {
	var figures []Figure
	for _, rows := range []int{l.rows(100_000), l.rows(1_000_000)} {
		l.fresh(ctx, objectsSchema(rows)...)
		var first, synced, copied, writes, compared, written []float64
		copyRate := func() { copied = append(copied, float64(rows)/l.copyOut(ctx).Seconds()) }
		copyRate()
		p := l.run(discard(target))
		l.settled(ctx)
		seconds := l.number(ctx, syncSeconds)
		first = append(first, float64(rows)/seconds)
		p.stop()
		l.exec(ctx, `VACUUM ANALYZE reconciler.ledger`, `CHECKPOINT`)
		copiedFirst := copied[:1:1]
		took := l.written(ctx)
		written = append(written, float64(rows)/took.Seconds())
		p = l.run(discard(target))
		copied = nil
		const ledgerWrites = `SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0) FROM pg_stat_user_tables WHERE relname = 'ledger'`
		for range min(l.rounds, 3) {
			copyRate()
			took = l.compared(ctx, rows)
			compared = append(compared, float64(rows)/took.Seconds())
			before := l.number(ctx, ledgerWrites)
			l.syncAgain(ctx)
			seconds := l.number(ctx, syncSeconds)
			after := l.number(ctx, ledgerWrites)
			synced, writes = append(synced, float64(rows)/seconds), append(writes, after-before)
		}
		peak, _ := p.memory()
		p.stop()
		name := fmt.Sprintf("%d rows", rows)
		figures = append(figures,
			Figure{Bench: "sync", What: name + ", in sync", Unit: "rows/s", Values: synced, Against: "COPY", Limits: copied}.atLeast(.6, "≥ 0.6"),
			Figure{Bench: "sync", What: name + ", in sync: ledger writes", Unit: "rows", Values: writes}.atMost(0, "0"),
			Figure{Bench: "sync", What: name + ": most memory", Unit: "MiB", Values: []float64{peak}}.atMost(100, "≤ 100 MiB"),
			Figure{Bench: "sync", What: name + ", first, no-op target", Unit: "rows/s", Values: first, Against: "COPY", Limits: copiedFirst}.atLeast(.25, "≥ 0.25"),
			Figure{Bench: "sync", What: name + ", compared with the ledger in one statement, no process", Unit: "rows/s", Values: compared, Against: "COPY", Limits: copied},
			Figure{Bench: "sync", What: name + ", written to the ledger before and after a call, in two statements, no process, no call", Unit: "rows/s", Values: written, Against: "COPY", Limits: copiedFirst},
		)
	}
	return append(figures, l.firstFiles(ctx)...)
}

// syncAgain asks for a sync as the interval does, and waits for its end. A resync would call for every object of a target that
// cannot list.
func (l *lab) syncAgain(ctx context.Context) {
	l.exec(ctx, fullSync)
	l.until(ctx, syncsOver)
}

// copyOut returns how long COPY takes for what a sync reads.
func (l *lab) copyOut(ctx context.Context) time.Duration {
	conn := must(l.pool.Acquire(ctx))
	defer conn.Release()
	null := must(os.OpenFile(os.DevNull, os.O_WRONLY, 0))
	defer null.Close()
	began := time.Now()
	must(conn.Conn().PgConn().CopyTo(ctx, null, `COPY (SELECT key, spec FROM reconciler.desired_object WHERE running) TO STDOUT`))
	return time.Since(began)
}

// firstFiles measures the first sync to a directory against a loop that writes the same files.
func (l *lab) firstFiles(ctx context.Context) []Figure {
	rows := l.rows(100_000)
	var ours, loops []float64
	for round := range min(l.rounds, 3) {
		l.fresh(ctx, objectsSchema(rows)...)
		dir, other := filepath.Join(l.dir, fmt.Sprint("files", round)), filepath.Join(l.dir, fmt.Sprint("loop", round))
		p := l.run(map[string]any{"name": target, "driver": "file", "options": map[string]any{"dir": dir, "fsync": false}, "sync_interval": "off"})
		l.settled(ctx)
		seconds := l.number(ctx, syncSeconds)
		ours = append(ours, float64(rows)/seconds)
		p.stop()
		took := l.writeLoop(ctx, other)
		loops = append(loops, float64(rows)/took.Seconds())
		for _, made := range []string{dir, other} {
			check(os.RemoveAll(made))
		}
	}
	return []Figure{Figure{Bench: "sync", What: fmt.Sprintf("%d rows, first, files", rows), Unit: "rows/s", Values: ours, Against: "a loop that writes them", Limits: loops}.atLeast(.7, "≥ 0.7")}
}

// writeLoop reads what is wanted and writes one file for each row, each under another name first.
func (l *lab) writeLoop(ctx context.Context, dir string) time.Duration {
	check(os.MkdirAll(dir, 0o700))
	began := time.Now()
	rows := must(l.pool.Query(ctx, `SELECT key, spec::text FROM reconciler.desired_object WHERE running`))
	defer rows.Close()
	for rows.Next() {
		var key, spec string
		check(rows.Scan(&key, &spec))
		path := filepath.Join(dir, key+".json")
		check(os.WriteFile(path+".tmp", []byte(spec+"\n"), 0o600))
		check(os.Rename(path+".tmp", path))
	}
	check(rows.Err())
	return time.Since(began)
}
