package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server"
)

// sink is a driver that does nothing but say when it was called.
type sink struct {
	mu      sync.Mutex
	waiting map[string]chan time.Time
	calls   atomic.Int64
}

// Apply tells whoever waits for the object.
func (s *sink) Apply(_ context.Context, obj driver.Object) driver.Outcome {
	now := time.Now()
	s.calls.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.waiting[obj.Key]; ok {
		delete(s.waiting, obj.Key)
		c <- now
	}
	return driver.Done()
}

// Delete does nothing.
func (*sink) Delete(context.Context, driver.Ref) driver.Outcome { return driver.Done() }

// Close has nothing to release.
func (*sink) Close(context.Context) error { return nil }

func (s *sink) expect(key string) <-chan time.Time {
	c := make(chan time.Time, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[key] = c
	return c
}

// within runs the product in this process, where a driver can say when it is called.
func (l *lab) within(ctx context.Context) (s *sink, stop func() error, err error) {
	s = &sink{waiting: map[string]chan time.Time{}}
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
	running := server.New(server.Options{Config: cfg, Drivers: map[string]driver.Driver{target: s}, Version: "bench", Logger: log})
	go func() { done <- running.Run(runCtx) }()
	stop = func() error { cancel(); return <-done }
	if err := l.settled(ctx); err != nil {
		_ = stop()
		return nil, nil, fmt.Errorf("first sync: %w", err)
	}
	return s, stop, nil
}

// percentile returns the value below which a part p (0 to 1) of sorted values lies, in milliseconds.
func percentile(sorted []time.Duration, p float64) float64 {
	return float64(sorted[min(len(sorted)-1, int(p*float64(len(sorted))))].Microseconds()) / 1000
}

// bareTrips measures a commit that notifies, as every naive design does, until the notification arrives: 20 a second.
func (l *lab) bareTrips(ctx context.Context, changes int) ([]time.Duration, error) {
	conn, err := pgx.Connect(ctx, l.url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	listener, err := pgx.Connect(ctx, l.url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer listener.Close(ctx)
	if _, err := listener.Exec(ctx, "LISTEN bare"); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var times []time.Duration
	for range changes {
		<-ticker.C
		commit, err := begin(ctx, conn, "WITH u AS (UPDATE plain SET n = n + 1 WHERE id = 1) SELECT pg_notify('bare', '')")
		if err != nil {
			return nil, err
		}
		arrived := make(chan error, 1)
		var at time.Time
		go func() {
			_, err := listener.WaitForNotification(ctx)
			at = time.Now()
			arrived <- err
		}()
		sent := time.Now()
		if err := commit(); err != nil {
			return nil, err
		}
		if err := <-arrived; err != nil {
			return nil, fmt.Errorf("wait for a notification: %w", err)
		}
		times = append(times, at.Sub(sent))
	}
	slices.Sort(times)
	return times, nil
}

// begin runs a statement in a transaction and returns its commit: both ways are timed from the moment it is sent.
func begin(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (commit func() error, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	if _, err := tx.Exec(ctx, sql, args...); err != nil {
		return nil, fmt.Errorf("update: %w", err)
	}
	return func() error {
		if err := tx.Commit(ctx); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		return nil
	}, nil
}

// changes commits changes of single rows at a rate, from as many connections as it takes, each at its own moments, and
// returns the times from the moment that the commit is sent to the driver's call.
func (l *lab) changes(ctx context.Context, s *sink, rate, changes int) ([]time.Duration, error) {
	writers := max(1, rate/100)
	group, groupCtx := errgroup.WithContext(ctx)
	each := make([][]time.Duration, writers)
	for w := range writers {
		group.Go(func() (err error) {
			conn, err := pgx.Connect(groupCtx, l.url)
			if err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			defer conn.Close(ctx)
			time.Sleep(time.Duration(w) * time.Second / time.Duration(rate))
			ticker := time.NewTicker(time.Duration(writers) * time.Second / time.Duration(rate))
			defer ticker.Stop()
			var pending sync.WaitGroup
			var mu sync.Mutex
			for i := range changes / writers {
				<-ticker.C
				id := (i*writers+w)%writtenRows + 1 // no row twice within seconds
				called := s.expect(strconv.Itoa(id))
				commit, err := begin(groupCtx, conn, "UPDATE tracked SET n = n + 1 WHERE id = $1", id)
				if err != nil {
					return err
				}
				sent := time.Now()
				if err := commit(); err != nil {
					return err
				}
				pending.Go(func() {
					select {
					case at := <-called:
						mu.Lock()
						defer mu.Unlock()
						each[w] = append(each[w], at.Sub(sent))
					case <-time.After(time.Minute):
					}
				})
			}
			pending.Wait()
			if len(each[w]) < changes/writers {
				return fmt.Errorf("%d of %d changes did not reach the driver within a minute", changes/writers-len(each[w]), changes/writers)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	times := slices.Concat(each...)
	slices.Sort(times)
	return times, nil
}

// benchLatency measures from commit to driver call at three rates, alone, beside an open transaction and beside a sync.
func benchLatency(ctx context.Context, l *lab) ([]Figure, error) {
	synced := l.rows(1_000_000)
	if err := l.fresh(ctx, append(writtenSchema(),
		`CREATE TABLE many (id int PRIMARY KEY, payload text NOT NULL DEFAULT repeat('x', 100))`, fmt.Sprintf(`INSERT INTO many SELECT generate_series(1, %d)`, synced),
		`SELECT reconciler.track('many', 'many', '{id}', '''sink''')`, `VACUUM ANALYZE`)...); err != nil {
		return nil, err
	}
	s, stop, err := l.within(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stop() }()
	points := map[string]float64{"p50": .5, "p99": .99, "p99.9": .999}
	values := map[string][]float64{}
	note := func(name string, times []time.Duration) {
		for point, p := range points {
			values[name+" "+point] = append(values[name+" "+point], percentile(times, p))
		}
	}
	for range l.rounds {
		bare, err := l.bareTrips(ctx, l.rows(200))
		if err != nil {
			return nil, err
		}
		note("bare", bare)
		for _, rate := range []int{20, 200, 2000} {
			times, err := l.changes(ctx, s, rate, max(l.rows(200), rate*3))
			if err != nil {
				return nil, err
			}
			note(strconv.Itoa(rate), times)
		}
		if err := l.besideOpen(ctx, s, note); err != nil {
			return nil, err
		}
		if err := l.besideSync(ctx, s, note); err != nil {
			return nil, err
		}
	}
	return latencyFigures(values), nil
}

// besideOpen measures with a transaction open that has changed a tracked row.
func (l *lab) besideOpen(ctx context.Context, s *sink, note func(string, []time.Duration)) error {
	conn, err := pgx.Connect(ctx, l.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := begin(ctx, conn, "UPDATE many SET payload = payload WHERE id = 1"); err != nil {
		return err
	}
	times, err := l.changes(ctx, s, 200, max(l.rows(200), 600))
	if err != nil {
		return err
	}
	note("open", times)
	return nil
}

// besideSync measures while every object is verified.
func (l *lab) besideSync(ctx context.Context, s *sink, note func(string, []time.Duration)) error {
	if err := l.exec(ctx, "SELECT reconciler.resync('sink', 'many')"); err != nil {
		return err
	}
	times, err := l.changes(ctx, s, 200, max(l.rows(200), 600))
	if err != nil {
		return err
	}
	note("sync", times)
	return l.settled(ctx)
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
		figure("200 changes/s, during a full sync", "sync", "p99", "without", "200").atMost(2, "≤ 2"),
	}
}
