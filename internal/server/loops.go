package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// poolEvery is how often a pool is asked for a connection that answers.
var poolEvery = pace.Of(10 * time.Second)

const (
	// poolTimeout is how long an answer may take.
	poolTimeout = 5 * time.Second
	// poolAgain is the pause after it did not answer.
	poolAgain = time.Second
)

var errSlowPool = errors.New("no connection of the pool answers in time")

// watchLoops has what fails noticed and logged; heartbeats write it down.
func (s *Server) watchLoops(ctx context.Context, group *errgroup.Group) {
	for _, run := range []func(context.Context){s.loops.Run, s.fleet.Run, func(ctx context.Context) { s.fleet.Watch(ctx, s.urls()...) }} {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
	group.Go(func() error { return s.probePool(ctx, loop.PoolWork, s.work) })
	group.Go(func() error { return s.probePool(ctx, loop.PoolDirect, s.direct) })
}

// probePool asks a pool again and again for a connection that answers: a pooler may be paused, a network may swallow what
// is sent, and whoever waits for an answer cannot tell.
func (s *Server) probePool(ctx context.Context, name loop.Name, pool *pgxpool.Pool) error {
	return s.loops.Loop(name, "").Run(ctx, loop.Schedule{AgainMin: poolAgain, AgainMax: poolAgain, Turn: func(ctx context.Context) (time.Duration, error) {
		if err := pingPool(ctx, pool); err != nil {
			return poolAgain, err
		}
		return poolEvery, nil
	}})
}

func pingPool(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, poolTimeout, errSlowPool)
	defer cancel()
	err := pool.Ping(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errSlowPool) {
		return fmt.Errorf("%w (%s)", errSlowPool, poolTimeout)
	}
	return err
}
