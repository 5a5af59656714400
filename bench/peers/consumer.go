package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// stopTimeout bounds how long a consumer may take to end.
const stopTimeout = 20 * time.Second

// loop is a consumer's goroutine that ends with its context.
type loop struct {
	cancel context.CancelFunc
	done   chan error
}

// goLoop starts one. What it returns after its context has ended is no error.
func goLoop(ctx context.Context, run func(context.Context) error) *loop {
	ctx, cancel := context.WithCancel(ctx)
	l := &loop{cancel: cancel, done: make(chan error, 1)}
	go func() {
		err := run(ctx)
		if ctx.Err() != nil {
			err = nil
		}
		l.done <- err
	}()
	return l
}

// stop ends it and returns what it failed with while it ran.
func (l *loop) stop() error {
	if l == nil {
		return nil
	}
	l.cancel()
	return <-l.done
}

// consumerPool connects a consumer. Its sessions need not wait for the disk: what they write is their own bookkeeping,
// and what a crash loses of it is only delivered again. Every peer has this who writes while it reads; writers never.
func consumerPool(ctx context.Context, url string, conns int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("configure the consumer: %w", err)
	}
	cfg.MaxConns = conns
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect the consumer: %w", err)
	}
	return pool, nil
}

// exec runs the statements that set a peer up.
func (s *stage) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}
