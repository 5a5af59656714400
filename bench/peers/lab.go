package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	labDatabase = "reconciler_bench_peers"
	// mostWriters is the largest number of connections that write at once.
	mostWriters = 64
	// writtenRows is how many rows writers spread their changes over.
	writtenRows = 10_000
	// leastConnections is what the server has to allow: writers, and as many again for kine, which has a pool of its own.
	leastConnections = 200
)

// lab is where everything is measured: a server, sizes, and how patient to be.
type lab struct {
	admin  string // URL of a database where databases can be made
	rounds int
	length time.Duration // of one round of commits
	hold   time.Duration // how long the open transaction is open
	// patience is how long nothing may be delivered before what has not come counts as missing.
	patience time.Duration
	// scale is what numbers of rows and changes are multiplied with: 1 for figures, far less to see that everything works.
	scale float64
}

// rows is a number of rows at the scale.
func (l *lab) rows(n int) int { return max(mostWriters, int(float64(n)*l.scale)) }

// check refuses a server on which the figures would be wrong or some of the peers could not run.
func (l *lab) check(ctx context.Context) (version string, err error) {
	conn, err := pgx.Connect(ctx, l.admin)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	var fsync, level, connections string
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('wal_level'), current_setting('max_connections')").
		Scan(&version, &fsync, &level, &connections); err != nil {
		return "", fmt.Errorf("read the server's settings: %w", err)
	}
	var problems []error
	if fsync != "on" {
		problems = append(problems, errors.New("fsync is off: commits that do not wait for the disk are not what anybody runs"))
	}
	if level != "logical" {
		problems = append(problems, fmt.Errorf("wal_level is %s: pgoutput needs logical", level))
	}
	if n, _ := strconv.Atoi(connections); n < leastConnections {
		problems = append(problems, fmt.Errorf("max_connections is %s: it takes %d", connections, leastConnections))
	}
	return version, errors.Join(problems...)
}

// site is a database of its own with one peer in it.
type site struct {
	*stage

	peer  peer
	about about
	inbox *inbox
	// version is n of each row of things, by id. A writer has its ids to itself.
	version []int64
}

// open makes a database with the table things of that many rows, one alike that nobody looks at, and one that somebody
// else writes to. The peer has prepared it, and is not started.
func (l *lab) open(ctx context.Context, p peer, rows int) (s *site, err error) {
	if err := l.drop(ctx); err != nil {
		return nil, err
	}
	if err := l.adminExec(ctx, "CREATE DATABASE "+labDatabase); err != nil {
		return nil, err
	}
	at, err := url.Parse(l.admin)
	if err != nil {
		return nil, errors.New("the URL cannot be read: expected postgres://user@host:port/database")
	}
	at.Path = "/" + labDatabase
	cfg, err := pgxpool.ParseConfig(at.String())
	if err != nil {
		return nil, fmt.Errorf("configure the writers: %w", err)
	}
	cfg.MaxConns = mostWriters + 8
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect the writers: %w", err)
	}
	b := &inbox{}
	s = &site{stage: &stage{url: at.String(), pool: pool, deliver: b.deliver}, peer: p, about: p.about(), inbox: b, version: make([]int64, rows+1)}
	for table, n := range map[string]int{"things": rows, "untracked": l.rows(writtenRows)} {
		if err := s.exec(ctx,
			fmt.Sprintf(`CREATE TABLE %s (id int PRIMARY KEY, payload text NOT NULL, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`, table),
			fmt.Sprintf(`INSERT INTO %s SELECT i, '%s', 0 FROM generate_series(1, %d) AS i`, table, payload, n)); err != nil {
			pool.Close()
			return nil, err
		}
	}
	if err := s.exec(ctx, `CREATE TABLE others (id int)`); err != nil {
		pool.Close()
		return nil, err
	}
	if err := p.prepare(ctx, s.stage); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare: %w", err), s.close(ctx))
	}
	return s, s.exec(ctx, `VACUUM ANALYZE`, `CHECKPOINT`)
}

// close ends the peer. The database stays for whoever wants to see what is in it, until the next one is made.
func (s *site) close(ctx context.Context) error {
	err := s.peer.stop(context.WithoutCancel(ctx))
	s.pool.Close()
	if err != nil {
		return fmt.Errorf("while it ran: %w", err)
	}
	return nil
}

// drop removes the database, if it is there.
func (l *lab) drop(ctx context.Context) error {
	return l.adminExec(ctx, "DROP DATABASE IF EXISTS "+labDatabase+" WITH (FORCE)")
}

// clean removes the database at the end, whatever has happened.
func (l *lab) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.drop(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "peers: the database", labDatabase, "was not dropped:", err)
	}
}

func (l *lab) adminExec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, l.admin)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}
