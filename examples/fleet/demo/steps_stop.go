package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	burstWriters = 2
	burstBefore  = 1500 * time.Millisecond // of the burst, before the daemon is ended
	burstAfter   = 700 * time.Millisecond  // of the burst, while no daemon runs
	// spoiled is what a file edited by hand has.
	spoiled = "{\"replicas\": 1000}\n"
)

// killed ends the daemon without warning while rows change, and starts another one.
func (d *demo) killed(ctx context.Context) error {
	if err := d.burst(ctx, func() error { d.daemon.kill(); return nil }); err != nil {
		return err
	}
	d.figure("", "the leases of the dead process run out first; then a sync verifies each target")
	return d.startDaemon(ctx)
}

// stopped asks the daemon to end while rows change. The agent goes on with what it has until a daemon runs again.
func (d *demo) stopped(ctx context.Context) error {
	var took time.Duration
	err := d.burst(ctx, func() (err error) {
		took, err = d.daemon.terminate(ctx)
		return err
	})
	if err != nil {
		return err
	}
	failed, err := value[int](ctx, d, "SELECT count(*) FROM reconciler.objects WHERE attempts > 0 OR state IN ('failing', 'blocked')")
	if err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("the stop counted %d objects as failed", failed)
	}
	d.figure("ended", "exit code 0 after %.2f s; %d objects counted as failed", took.Seconds(), failed)
	if err := d.repairs(ctx); err != nil {
		return err
	}
	d.agent.kill()
	if d.agent, err = d.spawn("agent", d.agentConfig); err != nil {
		return err
	}
	if err := d.repairs(ctx); err != nil {
		return err
	}
	d.figure("", "also by a new agent, after kill -9: what it needs is in its state_dir")
	return d.startDaemon(ctx)
}

// burst changes rows as fast as commits go, and calls end in the middle of that. Then objects must differ from their
// rows: else the comparison sees nothing.
func (d *demo) burst(ctx context.Context, end func() error) error {
	ids, err := value[[]int64](ctx, d, "SELECT array_agg(id) FROM fleet.topologies WHERE desired_status = 'running'")
	if err != nil {
		return err
	}
	var commits atomic.Int64
	var over atomic.Bool
	var writers errgroup.Group
	for range burstWriters {
		writers.Go(func() error {
			for !over.Load() {
				if _, err := d.pool.Exec(ctx, randomChange(), ids[rand.IntN(len(ids))]); err != nil {
					return fmt.Errorf("change a row: %w", err)
				}
				commits.Add(1)
			}
			return nil
		})
	}
	err = rest(ctx, burstBefore)
	if err == nil {
		err = end()
	}
	before := commits.Load()
	if err == nil {
		err = rest(ctx, burstAfter)
	}
	over.Store(true)
	if err := errors.Join(err, writers.Wait()); err != nil {
		return err
	}
	count, differences, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if len(differences) == 0 {
		return errors.New("no object differs from its row while no daemon runs")
	}
	d.figure("while no daemon runs", "%d of %d objects differ from their rows, after %d commits and %d more", len(differences), count, before, commits.Load()-before)
	return nil
}

// randomChange changes a topology, the deployment behind it, or whether the topology runs.
func randomChange() string {
	switch choice := rand.IntN(100); {
	case choice < 10:
		return "UPDATE fleet.deployments SET cpu = cpu % 2000 + 250 WHERE id = (SELECT deployment_id FROM fleet.topologies WHERE id = $1)"
	case choice < 12:
		return "UPDATE fleet.topologies SET desired_status = CASE desired_status WHEN 'running' THEN 'stopped' ELSE 'running' END WHERE id = $1 AND region = 'eu-west'"
	default:
		return "UPDATE fleet.topologies SET replicas = replicas % 9 + 1 WHERE id = $1"
	}
}

// repairs edits a file by hand, and measures until the agent has repaired it.
func (d *demo) repairs(ctx context.Context) error {
	files, err := filepath.Glob(d.dir(agentTarget) + "/topology/*.json")
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("%s has no topologies", agentTarget))
	}
	if err := os.WriteFile(files[0], []byte(spoiled), 0o600); err != nil {
		return fmt.Errorf("edit a file: %w", err)
	}
	took, err := until(ctx, "the agent to repair a file", 5*time.Millisecond, func() (bool, error) {
		content, err := os.ReadFile(files[0])
		return string(content) != spoiled, err
	})
	if err == nil {
		d.figure("a file edited by hand", "repaired by the agent after %.2f s, while no daemon runs", took.Seconds())
	}
	return err
}
