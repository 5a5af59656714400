package database

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/store"
)

var errQueued = errors.New("a statement that is only queued returns no rows")

// Queue returns what statements that return nothing are executed through to become a part of a pipeline: they succeed at once, and
// what comes of them is known when the batch has been sent.
func Queue(batch *pgx.Batch) store.DBTX { return queued{batch} }

type queued struct{ batch *pgx.Batch }

func (q queued) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	q.batch.Queue(sql, args...)
	return pgconn.CommandTag{}, nil
}

func (queued) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, errQueued }

func (queued) QueryRow(context.Context, string, ...any) pgx.Row { return pinnedRow{nil, errQueued} }
