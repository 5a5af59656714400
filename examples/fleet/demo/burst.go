package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
)

const burstWriters = 2

// burst changes rows as fast as commits go, until it is ended.
type burst struct {
	pool       *pgxpool.Pool
	topologies []int64
	commits    atomic.Int64
	stop       context.CancelFunc
	writers    sync.WaitGroup

	mu  sync.Mutex // guards err
	err error
}

// startBurst changes topologies that run, deployments behind them, and now and then stops one or has it run again.
func (d *demo) startBurst(ctx context.Context) (*burst, error) {
	ids, err := list[int64](ctx, d, "SELECT id FROM fleet.topologies WHERE desired_status = 'running' ORDER BY id")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	b := &burst{pool: d.pool, topologies: ids, stop: cancel}
	for n := range burstWriters {
		random := rand.New(rand.NewPCG(uint64(n), uint64(len(ids))))
		b.writers.Go(func() { b.write(ctx, random) })
	}
	return b, nil
}

func (b *burst) write(ctx context.Context, random *rand.Rand) {
	for ctx.Err() == nil {
		sql := "UPDATE fleet.topologies SET replicas = replicas % 9 + 1 WHERE id = $1"
		switch choice := random.IntN(100); {
		case choice < 10:
			sql = "UPDATE fleet.deployments SET cpu = cpu % 2000 + 250 WHERE id = (SELECT deployment_id FROM fleet.topologies WHERE id = $1)"
		case choice < 12:
			sql = "UPDATE fleet.topologies SET desired_status = CASE desired_status WHEN 'running' THEN 'stopped' ELSE 'running' END WHERE id = $1 AND region = 'eu-west'"
		}
		if _, err := b.pool.Exec(context.WithoutCancel(ctx), sql, b.topologies[random.IntN(len(b.topologies))]); err != nil {
			b.mu.Lock()
			b.err = errors.Join(b.err, fmt.Errorf("%s: %w", sql, err))
			b.mu.Unlock()
			return
		}
		b.commits.Add(1)
	}
}

// end returns how many commits there were.
func (b *burst) end() (int, error) {
	b.stop()
	b.writers.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.commits.Load()), b.err
}
