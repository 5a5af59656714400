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

	url  string
	pool *pgxpool.Pool
}

// rows is a number of rows at the scale.
func (l *lab) rows(n int) int { return max(100, int(float64(n)*l.scale)) }

// fresh makes the database anew, with the schema and these statements.
func (l *lab) fresh(ctx context.Context, statements ...string) error {
	l.drop()
	if err := l.adminExec(ctx, "CREATE DATABASE "+benchDatabase); err != nil {
		return err
	}
	at, err := url.Parse(l.admin)
	if err != nil {
		return errors.New("the URL cannot be read: expected postgres://user@host:port/database")
	}
	at.Path = "/" + benchDatabase
	l.url = at.String()
	if _, err := migrate.Up(ctx, l.url); err != nil {
		return err
	}
	cfg, err := pgxpool.ParseConfig(l.url)
	if err != nil {
		return err
	}
	cfg.MaxConns = mostWriters + 8
	if l.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return l.exec(ctx, statements...)
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

func (l *lab) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := l.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// number runs a query that gives one number.
func (l *lab) number(ctx context.Context, sql string, args ...any) (n float64, err error) {
	if err := l.pool.QueryRow(ctx, "SELECT ("+sql+")::float8", args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("%s: %w", sql, err)
	}
	return n, nil
}

// timed returns how long statements take.
func (l *lab) timed(ctx context.Context, statements ...string) (time.Duration, error) {
	began := time.Now()
	err := l.exec(ctx, statements...)
	return time.Since(began), err
}

// settled waits until everything is applied.
func (l *lab) settled(ctx context.Context) error {
	return l.exec(ctx, "SELECT reconciler.wait('30min')")
}

// product is a running `reconciler run`.
type product struct {
	cmd   *exec.Cmd
	ended chan error
}

// run starts the product with these targets, and returns at once.
func (l *lab) run(targets ...map[string]any) (*product, error) {
	return l.start("run", map[string]any{"database_url": l.url, "listen": "off", "targets": targets})
}

// start starts a command of the product with a config, and returns at once.
func (l *lab) start(command string, config map[string]any) (*product, error) {
	config["log"] = map[string]any{"level": "warn"}
	file := filepath.Join(l.dir, command+".json")
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	p := &product{cmd: exec.Command(l.binary, command, "-c", file), ended: make(chan error, 1)} //nolint:noctx // it is stopped by a signal
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", l.binary, err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	return p, nil
}

// begin makes the database anew, starts the product there, and waits for its first sync.
func (l *lab) begin(ctx context.Context, schema []string, targets ...map[string]any) (*product, error) {
	if err := l.fresh(ctx, schema...); err != nil {
		return nil, err
	}
	p, err := l.run(targets...)
	if err != nil {
		return nil, err
	}
	if err := l.settled(ctx); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// stop ends it as service managers do.
func (p *product) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	if err := <-p.ended; err != nil {
		return fmt.Errorf("reconciler %s: %w", p.cmd.Args[1], err)
	}
	return nil
}

// freeAddress returns an address that nothing listens on.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	return listener.Addr().String(), listener.Close()
}

// discard is a target that takes everything at once.
func discard(name string) map[string]any {
	return map[string]any{"name": name, "driver": "discard", "sync_interval": "off", "guard": map[string]any{"max_fraction": 1}}
}

// memory returns the most and the present memory of the process, in MiB.
func (p *product) memory() (peak, now float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
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
	return peak, now, nil
}

// cpu returns the processor time that the process has taken.
func (p *product) cpu() (time.Duration, error) {
	pid := p.cmd.Process.Pid
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, text)
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const ticks = 100 // a second, on every Linux
	return time.Duration(user+system) * time.Second / ticks, nil
}
