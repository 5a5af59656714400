package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/measure"
	"github.com/pgreconciler/reconciler/internal/server"
)

// within runs the product in this process, where a driver can say when it is called.
func (l *lab) within(ctx context.Context, change ...func(*server.Options)) (s *measure.Sink, stop func()) {
	s = &measure.Sink{}
	cfg := &config.Config{
		DatabaseURL: config.NewURL(l.url), DirectURL: config.NewURL(l.url), Notify: config.NotifyAuto, PollInterval: time.Second,
		ShutdownTimeout: 10 * time.Second, Retention: config.Retention{MaxAge: 24 * time.Hour, MaxRows: 10_000_000},
		Targets: []config.Target{{
			Name: target, Driver: "sink", Options: driver.Options{}, Concurrency: 8, Timeout: 5 * time.Second,
			Backoff: config.Backoff{Min: time.Second, Max: time.Minute}, Guard: config.Guard{Window: time.Minute}, SyncMode: config.SyncRepair,
		}},
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	runCtx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	opts := server.Options{Config: cfg, Drivers: map[string]driver.Driver{target: s}, Version: "bench", Logger: log}
	for _, c := range change {
		c(&opts)
	}
	running := server.New(opts)
	go func() { done <- running.Run(runCtx) }()
	stop = func() { cancel(); check(<-done) }
	if err := attempt(func() { l.settled(ctx) }); err != nil {
		stop()
		check(fmt.Errorf("first sync: %w", err))
	}
	return s, stop
}

// slowRate is the rate, in changes a second, at which nothing ever waits for anything else.
const slowRate = 20

func (l *lab) pace(table string, rate, changes int) measure.Pace {
	return measure.Pace{Pool: l.pool, Table: table, Rows: writtenRows, Rate: rate, Changes: changes}
}

// benchLatency measures from commit to driver call at three rates, alone, beside an open transaction and beside a sync.
func benchLatency(ctx context.Context, l *lab) []Figure {
	synced := l.rows(1_000_000)
	l.fresh(ctx, append(writtenSchema(),
		`CREATE TABLE many (id int PRIMARY KEY, payload text NOT NULL DEFAULT repeat('x', 100))`, fmt.Sprintf(`INSERT INTO many SELECT generate_series(1, %d)`, synced),
		`SELECT reconciler.track('many', 'many', '{id}', '''sink''')`, `VACUUM ANALYZE`)...)
	s, stop := l.within(ctx)
	defer stop()
	values := points{}
	note := values.note
	for range l.rounds {
		note("bare", must(measure.Trips(ctx, l.pace("plain", slowRate, l.rows(200)))))
		alone := func(rate int) {
			note(strconv.Itoa(rate), must(measure.Changes(ctx, s, l.pace("tracked", rate, max(l.rows(200), rate*3)))))
		}
		// The fast one comes last: it leaves the leader awake, and then 200 a second are not enough to let it sleep.
		alone(slowRate)
		alone(200)
		l.besideOpen(ctx, s, note)
		l.besideReader(ctx, s, note)
		l.besideSync(ctx, s, note, "sync", fullSync)
		l.besideSync(ctx, s, note, "resync", "SELECT reconciler.resync('sink', 'many')")
		alone(2000)
	}
	return latencyFigures(values)
}

// besideOpen measures with a transaction open that has changed a tracked row.
func (l *lab) besideOpen(ctx context.Context, s *measure.Sink, note func(string, []time.Duration)) {
	tx := must(l.pool.Begin(ctx))
	defer func() { _ = tx.Rollback(ctx) }() // a broken connection is gone with it
	must(tx.Exec(ctx, "UPDATE many SET payload = payload WHERE id = 1"))
	note("open", must(measure.Changes(ctx, s, l.pace("tracked", 200, max(l.rows(200), 600)))))
}

// besideReader measures beside one session that reads the rows of a sync over and over and looks at each, which is not ours:
// what is slower then waits for a processor, whatever made it busy.
func (l *lab) besideReader(ctx context.Context, s *measure.Sink, note func(string, []time.Duration)) {
	reading, stop := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() {
		read <- attempt(func() {
			for {
				l.exec(reading, `SET LOCAL max_parallel_workers_per_gather = 0; SELECT count(sha256(convert_to(spec::text, 'UTF8'))) FROM reconciler.desired_many`)
			}
		})
	}()
	times, err := measure.Changes(ctx, s, l.pace("tracked", 200, max(l.rows(200), 600)))
	stop()
	if ended := <-read; !errors.Is(ended, context.Canceled) {
		check(ended)
	}
	check(err)
	note("reader", times)
}

const (
	// fullSync asks for what a target's sync_interval asks for.
	fullSync = `INSERT INTO reconciler.sync_runs (target_id, reason, mode, verify) SELECT id, 'interval', 'repair', false FROM reconciler.targets WHERE name = 'sink' ON CONFLICT DO NOTHING;
		NOTIFY reconciler_control`
	syncsOver = `SELECT (count(*) = 0)::int FROM reconciler.sync_runs WHERE state IN ('requested', 'running')`
)

// besideSync measures while a sync goes over every object, which it must outlast.
func (l *lab) besideSync(ctx context.Context, s *measure.Sink, note func(string, []time.Duration), name, ask string) {
	l.exec(ctx, ask)
	note(name, must(measure.Changes(ctx, s, l.pace("tracked", 200, max(l.rows(200), 600)))))
	if l.number(ctx, syncsOver) > 0 && l.scale == 1 {
		check(fmt.Errorf("the %s of %d objects was over before the changes beside it were", name, l.rows(1_000_000)))
	}
	l.until(ctx, syncsOver) // wait() waits for no check of an interval
	l.settled(ctx)
}

func latencyFigures(values map[string][]float64) []Figure {
	figure := func(what, of, point, against, limit string) Figure {
		f := Figure{Bench: "latency", What: what + ", " + point, Unit: "ms", Values: values[of+" "+point]}
		if against != "" {
			f.Against, f.Limits = against, values[limit+" "+point]
		}
		return f
	}
	const bare = "bare LISTEN/NOTIFY"
	return []Figure{
		figure("20 changes/s", "20", "p50", bare, "bare").atMost(3, "≤ 3"),
		figure("20 changes/s", "20", "p99", "", "").atMost(10, "≤ 10 ms"),
		figure("20 changes/s", "20", "p99", bare, "bare"),
		figure("200 changes/s", "200", "p50", bare, "bare").atMost(3, "≤ 3"),
		figure("200 changes/s", "200", "p99", "", "").atMost(10, "≤ 10 ms"),
		figure("200 changes/s", "200", "p99.9", "", ""),
		figure("2,000 changes/s", "2000", "p50", bare, "bare"),
		figure("2,000 changes/s", "2000", "p99", "", "").atMost(20, "≤ 20 ms"),
		figure("2,000 changes/s", "2000", "p99.9", "", ""),
		figure("200 changes/s, a transaction open", "open", "p99", "without", "200").atMost(1.3, "≤ 1.3"),
		figure("200 changes/s, beside one session that reads a million rows, which is not ours", "reader", "p99", "without", "200"),
		figure("200 changes/s, during a full sync that finds everything as it should be", "sync", "p99", "without", "200").atMost(2, "≤ 2"),
		figure("200 changes/s, during a resync, which calls for every object", "resync", "p99", "without", "200").atMost(2, "≤ 2"),
	}
}
