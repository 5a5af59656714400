package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/measure"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

const (
	benchDatabase = "reconciler_bench"
	// mostWriters is the largest number of connections that write at once.
	mostWriters = 64
	// target is the name of the only target, where there is one.
	target = "sink"
)

// lab is what every measurement works with: a server, sizes, and a database that each of them gets anew.
type lab struct {
	admin  string // URL of a database where databases can be made
	binary string // reconciler
	dir    string // for configs and files
	rounds int
	length time.Duration // of one round of commits
	// scale is what numbers of rows are multiplied with: 1 for figures, far less to see that everything works.
	scale float64

	url     string
	pool    *pgxpool.Pool
	started []*product
}

// failure is the panic with which check ends a measurement.
type failure struct{ err error }

// check ends the measurement if err is not nil. Call it only below attempt, and in the same goroutine.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns a value, and ends the measurement as check does.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// points are percentiles of each round in milliseconds, by name and point, such as "bare p99".
type points map[string][]float64

func (p points) note(name string, times []time.Duration) {
	for point, part := range map[string]float64{"p50": .5, "p99": .99, "p99.9": .999} {
		at := name + " " + point
		p[at] = append(p[at], measure.Percentile(times, part))
	}
}

// attempt returns the error with which check ended work, or nil.
func attempt(work func()) (err error) {
	defer func() {
		switch ended := recover().(type) {
		case nil:
		case failure:
			err = ended.err
		default:
			panic(ended)
		}
	}()
	work()
	return nil
}

// rows is a number of rows at the scale.
func (l *lab) rows(n int) int { return max(100, int(float64(n)*l.scale)) }

// fresh makes the database anew, with the schema and these statements.
func (l *lab) fresh(ctx context.Context, statements ...string) {
	l.drop()
	check(l.adminExec(ctx, "CREATE DATABASE "+benchDatabase))
	at, err := url.Parse(l.admin)
	if err != nil {
		check(errors.New("the URL cannot be read: expected postgres://user@host:port/database"))
	}
	at.Path = "/" + benchDatabase
	l.url = at.String()
	must(migrate.Up(ctx, l.url))
	cfg := must(pgxpool.ParseConfig(l.url))
	cfg.MaxConns = mostWriters + 8
	l.pool = must(pgxpool.NewWithConfig(ctx, cfg))
	l.exec(ctx, statements...)
}

// drop removes the database, if it is there.
func (l *lab) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if l.pool != nil {
		l.pool.Close()
		l.pool = nil
	}
	if err := l.adminExec(ctx, "DROP DATABASE IF EXISTS "+benchDatabase+" WITH (FORCE)"); err != nil {
		fmt.Fprintln(os.Stderr, "bench: the database", benchDatabase, "was not dropped:", err)
	}
}

func (l *lab) adminExec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, l.admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

func (l *lab) exec(ctx context.Context, statements ...string) {
	for _, sql := range statements {
		if _, err := l.pool.Exec(ctx, sql); err != nil {
			check(fmt.Errorf("%s: %w", sql, err))
		}
	}
}

// number runs a query that gives one number.
func (l *lab) number(ctx context.Context, sql string, args ...any) (n float64) {
	if err := l.pool.QueryRow(ctx, "SELECT ("+sql+")::float8", args...).Scan(&n); err != nil {
		check(fmt.Errorf("%s: %w", sql, err))
	}
	return n
}

// timed returns how long statements take.
func (l *lab) timed(ctx context.Context, statements ...string) time.Duration {
	began := time.Now()
	l.exec(ctx, statements...)
	return time.Since(began)
}

// settled waits until everything is applied.
func (l *lab) settled(ctx context.Context) {
	l.exec(ctx, "SELECT reconciler.wait('30min')")
}

// product is a running `reconciler run`.
type product struct {
	cmd   *exec.Cmd
	ended chan error
}

// run starts the product with these targets, and returns at once.
func (l *lab) run(targets ...map[string]any) *product {
	return l.start("run", map[string]any{"database_url": l.url, "listen": "off", "targets": targets})
}

// start starts a command of the product with a config, and returns at once.
func (l *lab) start(command string, config map[string]any) *product {
	config["log"] = map[string]any{"level": "warn"}
	file := filepath.Join(l.dir, command+".json")
	text := must(json.Marshal(config))
	check(os.WriteFile(file, text, 0o600))
	p := &product{cmd: exec.Command(l.binary, command, "-c", file), ended: make(chan error, 1)} //nolint:noctx // it is stopped by a signal
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	if err := p.cmd.Start(); err != nil {
		check(fmt.Errorf("start %s: %w", l.binary, err))
	}
	l.started = append(l.started, p)
	go func() { p.ended <- p.cmd.Wait() }()
	return p
}

// begin makes the database anew, starts the product there, and waits for its first sync.
func (l *lab) begin(ctx context.Context, schema []string, targets ...map[string]any) *product {
	l.fresh(ctx, schema...)
	p := l.run(targets...)
	l.settled(ctx)
	return p
}

// end kills what a measurement that failed has left running.
func (l *lab) end() {
	for _, p := range l.started {
		_ = p.cmd.Process.Kill() // most have ended long ago
	}
}

// stop ends it as service managers do.
func (p *product) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	if err := <-p.ended; err != nil {
		check(fmt.Errorf("reconciler %s: %w", p.cmd.Args[1], err))
	}
}

// freeAddress returns an address that nothing listens on.
func freeAddress(ctx context.Context) string {
	listener := must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	check(listener.Close())
	return listener.Addr().String()
}

// discard is a target that takes everything at once.
func discard(name string) map[string]any {
	return map[string]any{"name": name, "driver": "discard", "sync_interval": "off", "guard": map[string]any{"max_fraction": 1}}
}

// memory returns the most and the present memory of the process, in MiB.
func (p *product) memory() (peak, now float64) {
	text := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)))
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmHWM:":
			peak = kib / 1024
		case "VmRSS:":
			now = kib / 1024
		}
	}
	return peak, now
}

// cpu returns the processor time that the process has taken.
func (p *product) cpu() time.Duration {
	pid := p.cmd.Process.Pid
	text := must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		check(fmt.Errorf("/proc/%d/stat: %q", pid, text))
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const ticks = 100 // a second, on every Linux
	return time.Duration(user+system) * time.Second / ticks
}
