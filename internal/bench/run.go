package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/measure"
	"github.com/pgreconciler/reconciler/internal/migrate"
)

const (
	// rowsPerWriter and rowsMin say how many rows each table has: so many that writers seldom meet at one, and that no row
	// changes twice within seconds; and few enough to be cached.
	rowsPerWriter = 500
	rowsMin       = 1000
	untracked     = "untracked"
	tracked       = "tracked"
	target        = "sink"
)

// schemaSQL makes the two tables, which are alike.
const schemaSQL = `
CREATE TABLE public.untracked (id int PRIMARY KEY, payload text NOT NULL, n int NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE TABLE public.tracked (LIKE public.untracked INCLUDING ALL) WITH (fillfactor = 50);
INSERT INTO public.untracked SELECT i, repeat('x', 100) FROM generate_series(1, %d) AS i;
INSERT INTO public.tracked TABLE public.untracked;
SELECT reconciler.track('bench', 'public.tracked', '{id}', '''%s''');
ANALYZE;`

// lab is one run.
type lab struct {
	opts    Options
	url     string        // of the scratch database
	writers *pgxpool.Pool // as the user's own programs connect
	lazy    *pgxpool.Pool // whose commits do not wait for the disk
	samples samples
}

// Run measures, and drops what it made, whatever happens. admin is a session in the user's database, with SessionSettings.
// Refusals are *Refusal.
func Run(ctx context.Context, admin *pgx.Conn, opts Options) (result *Result, err error) {
	opts = opts.withDefaults()
	if err := sweep(ctx, admin, opts.Note); err != nil {
		return nil, err
	}
	if err := check(ctx, admin, opts); err != nil {
		return nil, err
	}
	server, err := lookAround(ctx, admin)
	if err != nil {
		return nil, err
	}
	place, err := newScratch(ctx, admin, opts.URL)
	if place != nil {
		defer func() {
			left := place.drop(ctx)
			if left == nil && ctx.Err() != nil {
				opts.Note("ended; the scratch database is dropped")
			}
			err = errors.Join(err, left)
		}()
	}
	if err != nil {
		return nil, err
	}
	opts.Note("measuring for about %s in the scratch database %s; Ctrl-C ends it and drops that", opts.duration().Round(time.Second), place.name)
	l := &lab{opts: opts, url: place.url, samples: samples{}}
	defer l.close()
	if err := l.prepare(ctx, server.SynchronousCommit); err != nil {
		return nil, err
	}
	for round := range opts.Rounds {
		if err := l.round(ctx, round); err != nil {
			return nil, err
		}
		// Without its lock the database may be dropped by another run at any moment.
		if err := admin.Ping(ctx); err != nil {
			return nil, fmt.Errorf("keep the lock of the scratch database: %w", err)
		}
		opts.Note("round %d of %d is done", round+1, opts.Rounds)
	}
	if err := server.count(ctx, admin, place.name); err != nil {
		return nil, err
	}
	return l.result(server), nil
}

// prepare installs the product in the scratch database, and connects.
func (l *lab) prepare(ctx context.Context, synchronousCommit string) error {
	// Connecting first says more clearly than a migration does what is in the way, such as pg_hba.conf.
	conn, err := database.Connect(ctx, l.url, database.Options{Name: "reconciler bench"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := migrate.Up(ctx, l.url); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(schemaSQL, l.opts.rows(), target)); err != nil {
		return fmt.Errorf("make the tables to write to: %w", err)
	}
	// Writers of two rates, their listener, and one connection to look with.
	if l.writers, err = l.connect(ctx, l.opts.Writers+4, synchronousCommit); err != nil {
		return err
	}
	l.lazy, err = l.connect(ctx, 1, "off")
	return err
}

// connect opens a pool as a user's program does, without what our own connections pin.
func (l *lab) connect(ctx context.Context, conns int, synchronousCommit string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(l.url)
	if err != nil {
		return nil, errURL
	}
	cfg.MaxConns = int32(conns)
	cfg.ConnConfig.RuntimeParams["application_name"] = "reconciler bench writer"
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = synchronousCommit
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect the writers: %w", err)
	}
	return pool, nil
}

func (l *lab) close() {
	for _, pool := range []*pgxpool.Pool{l.writers, l.lazy} {
		if pool != nil {
			pool.Close()
		}
	}
}

// settled waits until everything is applied.
func (l *lab) settled(ctx context.Context) error {
	if _, err := l.writers.Exec(ctx, "SELECT reconciler.wait('10min')"); err != nil {
		return fmt.Errorf("wait until everything is applied: %w", err)
	}
	return nil
}

func (l *lab) load(table string, writers int) measure.Load {
	return measure.Load{Pool: l.writers, Table: table, Rows: l.opts.rows(), Writers: writers, Length: l.opts.Length}
}

func (l *lab) pace(table string, rate, lengths int) measure.Pace {
	return measure.Pace{Pool: l.writers, Table: table, Rows: l.opts.rows(), Rate: rate, Changes: l.opts.changes(rate, lengths)}
}
