package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tripChannel is the channel of Trips; nobody else listens to it.
const tripChannel = "reconciler_measure"

// Trips measures commits that notify, as every naive design does, from the moment that they are sent until the
// notification arrives: the limit that the product's latency is compared with.
func Trips(ctx context.Context, pace Pace) ([]time.Duration, error) {
	writer, err := pace.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect a writer: %w", err)
	}
	defer writer.Release()
	listener, err := pace.Pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect a listener: %w", err)
	}
	defer unlisten(ctx, listener)
	if _, err := listener.Exec(ctx, "LISTEN "+tripChannel); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	sql := "WITH u AS (" + Load{Table: pace.Table}.update() + ") SELECT pg_notify('" + tripChannel + "', '')"
	ticker := time.NewTicker(time.Second / time.Duration(pace.Rate))
	defer ticker.Stop()
	times := make([]time.Duration, 0, pace.Changes)
	for i := range pace.Changes {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		took, err := trip(ctx, writer.Conn(), listener.Conn(), sql, i%pace.Rows+1)
		if err != nil {
			return nil, err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return times, nil
}

// unlisten gives the connection back as it was.
func unlisten(ctx context.Context, listener *pgxpool.Conn) {
	_, _ = listener.Exec(ctx, "UNLISTEN "+tripChannel) // a connection that is broken is not kept
	listener.Release()
}

func trip(ctx context.Context, writer, listener *pgx.Conn, sql string, id int) (time.Duration, error) {
	commit, err := begin(ctx, writer, sql, id)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	type arrival struct {
		at  time.Time
		err error
	}
	arrived := make(chan arrival, 1)
	go func() {
		_, err := listener.WaitForNotification(ctx)
		arrived <- arrival{time.Now(), err}
	}()
	sent := time.Now()
	if err := commit(); err != nil {
		cancel()
		<-arrived
		return 0, err
	}
	got := <-arrived
	if got.err != nil {
		return 0, fmt.Errorf("wait for a notification: %w", got.err)
	}
	return got.at.Sub(sent), nil
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
