package faults_test

import (
	"context"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// pausePooler has the pooler pass nothing any more, as for an upgrade of the server.
func (w *world) pausePooler() (end func()) {
	w.note("PAUSE")
	w.pooler.Pause(w.t)
	return func() { w.pooler.Resume(w.t) }
}

// offsets are by how much the server's clock jumps. They are longer than a world, so that a time tells which of them was
// in force.
var offsets = []time.Duration{time.Hour, 48 * time.Hour, 30 * 24 * time.Hour, -time.Hour, -48 * time.Hour}

// jump sets the server's clock for some time.
func (w *world) jump(f fault) (end func()) {
	by := offsets[f.Choice%len(offsets)]
	w.clock.Set(w.t, by)
	if !w.stopped {
		w.insist(func(ctx context.Context, conn *pgx.Conn) error {
			var now time.Time
			err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
			if off := time.Since(now.Add(-by)).Abs(); err == nil && off > time.Minute {
				w.violate("tester", "the server's clock does not jump: it is wrong by %s", time.Until(now))
			}
			return err
		})
	}
	w.note("the server's clock is wrong by %s", by)
	return func() { w.clock.Set(w.t, 0) }
}

// actual returns when something happened that the server has dated.
func (w *world) actual(at time.Time) time.Time {
	if w.clock == nil || at.IsZero() {
		return at
	}
	for _, by := range append([]time.Duration{0}, offsets...) {
		if ago := time.Since(at.Add(-by)); ago > -time.Minute && ago < time.Hour/2 {
			return at.Add(-by)
		}
	}
	return at
}

// program runs one of the server's own programs against the world's database, on the server.
func (w *world) program(command string, args ...any) (said string, err error) {
	err = w.once(func(ctx context.Context, conn *pgx.Conn) error {
		var bin, port string
		if err := conn.QueryRow(ctx, `SELECT setting, current_setting('port') FROM pg_config WHERE name = 'BINDIR'`).Scan(&bin, &port); err != nil {
			return err
		}
		name, rest, _ := strings.Cut(fmt.Sprintf(command, args...), " ")
		line := fmt.Sprintf("PGHOST=127.0.0.1 PGPORT=%s PGUSER=postgres %s %s 2>&1 || echo failed", port, path.Join(bin, name), rest)
		_, err := conn.Exec(ctx, `CREATE TEMP TABLE IF NOT EXISTS output (line text); TRUNCATE output; COPY output FROM PROGRAM $command$`+line+`$command$`)
		if err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT coalesce(string_agg(line, E'\n'), '') FROM output`).Scan(&said)
	})
	return said, err
}

// dump takes a dump of everything but the tester's own memory.
func (w *world) dump() bool {
	w.dumped = "/tmp/" + w.db.Name + ".dump"
	said, err := w.program("pg_dump -Fc --exclude-schema=test -f %s %s", w.dumped, w.db.Name)
	if err != nil || said != "" {
		w.note("no dump: %v %s", err, said)
		w.dumped = ""
	}
	w.asDumped = maps.Clone(w.variants)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drainedThen = w.drained
	return w.dumped != ""
}

// reload puts the dump back into the database, while no process runs: what was committed since is undone.
func (w *world) reload() {
	if w.dumped == "" {
		return
	}
	for _, r := range w.replicas {
		r.down = true
		if r.process().alive() {
			w.end(r)
		}
	}
	for _, gid := range w.column(`SELECT gid FROM pg_prepared_xacts WHERE database = current_database()`) {
		w.must("ROLLBACK PREPARED '" + gid + "'")
	}
	w.payAll()
	said, err := w.program("pg_restore --clean --if-exists --single-transaction -d %s %s", w.db.Name, w.dumped)
	if err != nil || said != "" {
		w.violate("tester", "pg_restore: %v %s", err, said)
	}
	_, _ = w.program("psql -c %q %s", "COPY (SELECT) TO PROGRAM 'rm -f "+w.dumped+"'", w.db.Name)
	for _, sql := range w.hostileGone { // wait() would wait for what the dump has brought back
		w.must(sql)
	}
	w.variants = w.asDumped
	w.mu.Lock()
	w.drained = w.drainedThen
	w.mu.Unlock()
	w.forgetHistory()
	w.note("reloaded")
	for _, r := range w.replicas {
		r.down = false
	}
	w.reviveAll()
}

// forgetHistory has the tester remember nothing but the rows that there are: what it saw before was undone.
func (w *world) forgetHistory() {
	sql := []string{"BEGIN", "TRUNCATE test.history"}
	for _, name := range w.plan.wantedFrom() {
		sql = append(sql, fmt.Sprintf("INSERT INTO test.history (tab, new) SELECT '%s', to_jsonb(r) FROM %s AS r", name, resources[name].main))
		if name == "svc" {
			sql = append(sql, "INSERT INTO test.history (tab, new) SELECT 'workspace', to_jsonb(r) FROM workspaces AS r")
		}
	}
	for name, variant := range w.variants {
		sql = append(sql, noteVariant(name, variant))
	}
	w.must(strings.Join(append(sql, "COMMIT"), "; "))
	w.payAll()
	w.judgeFrom = time.Now()
}
