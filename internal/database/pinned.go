package database

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/store"
)

// walkSQL has the planner walk indexes, for the rest of the transaction; see WalkSession. A scan that cannot be avoided then
// has a cost for which the statement would be compiled: 0.8 s for each page of the outbox through a pooler.
const walkSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true)`

// Batcher sends a pipeline of statements; *pgxpool.Pool and *pgx.Conn are ones.
type Batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Walk returns what statements are executed through that must walk an index, as in a WalkSession: each with its settings in
// its own transaction, at no further round trip.
func Walk(db Batcher) store.DBTX {
	p := pinned{db: db, set: walkSQL}
	if pool, ok := db.(*pgxpool.Pool); ok {
		p.fleet = lentBy(pool)
	}
	return p
}

// Rows returns what users' rows are to be read through, so that a spec has the same text whatever the way: the pool
// itself or, where it leads through a pooler, the pool with the settings pinned in each query's own
// transaction, at no further round trip. Nil for nil.
func Rows(pool *pgxpool.Pool) store.DBTX {
	switch {
	case pool == nil:
		return nil
	case !Pooled(pool.Config().ConnConfig):
		return pool
	}
	return pinned{pool, pinSQL, lentBy(pool)}
}

// Pin pins, through a pooler, for the rest of db's transaction what Rows pins for each statement; sessions of our own have it
// pinned already.
func Pin(ctx context.Context, pool *pgxpool.Pool, db store.DBTX) error {
	if !Pooled(pool.Config().ConnConfig) {
		return nil
	}
	if _, err := db.Exec(ctx, pinSQL); err != nil {
		return err
	}
	fleet := lentBy(pool)
	expect := fleet.expectSQL()
	if expect == "" {
		return nil
	}
	_, err := db.Exec(ctx, expect)
	return fleet.expected(err)
}

// pinned sets something in the transaction of each statement.
type pinned struct {
	db  Batcher
	set string
	// fleet says which server the transaction must be on. Nil: the session cannot change it.
	fleet *Fleet
}

// send sends settings and query as one pipeline, which is one transaction.
func (p pinned) send(ctx context.Context, sql string, args []any) (pgx.BatchResults, error) {
	if len(args) > 0 {
		if _, mode := args[0].(pgx.QueryExecMode); mode {
			args = args[1:] // a batch has one mode: that of its connection
		}
	}
	batch := &pgx.Batch{}
	batch.Queue(p.set)
	if expect := p.fleet.expectSQL(); expect != "" {
		batch.Queue(expect)
	}
	ahead := batch.Len()
	batch.Queue(sql, args...)
	results := p.db.SendBatch(ctx, batch)
	for range ahead {
		if _, err := results.Exec(); err != nil {
			_ = results.Close() // says the same
			return nil, p.fleet.expected(err)
		}
	}
	return results, nil
}

func (p pinned) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	results, err := p.send(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	tag, err := results.Exec()
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return tag, err
}

func (p pinned) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	results, err := p.send(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	rows, err := results.Query()
	if err != nil {
		_ = results.Close() // says the same
		return nil, err
	}
	return &pinnedRows{rows, results}, nil
}

func (p pinned) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, err := p.Query(ctx, sql, args...)
	return pinnedRow{rows, err}
}

// pinnedRows gives the connection back when they are closed.
type pinnedRows struct {
	pgx.Rows

	results pgx.BatchResults
}

func (r *pinnedRows) Close() {
	r.Rows.Close()
	_ = r.results.Close() // an error is in Err
}

type pinnedRow struct {
	rows pgx.Rows
	err  error
}

func (r pinnedRow) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
