package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	changedDeployments = 200
	changePace         = 25 * time.Millisecond
	// watchPause is the pause between two looks at a file: what a measured latency is too long by, at most.
	watchPause = 200 * time.Microsecond
	// comparePause is the pause between two comparisons of everything: each takes processor time from the daemon.
	comparePause = 250 * time.Millisecond
)

// start starts the agent and the daemon in front of empty targets.
func (d *demo) start(ctx context.Context) (err error) {
	if d.agent, err = d.spawn("agent", d.agentConfig); err != nil {
		return err
	}
	return d.startDaemon(ctx)
}

// startDaemon starts `reconciler run`, and measures until every object is as its row wants it, and until that is verified.
func (d *demo) startDaemon(ctx context.Context) (err error) {
	began := time.Now()
	if d.daemon, err = d.spawn("run", d.config); err != nil {
		return err
	}
	var count int
	var differences []string
	took, err := until(ctx, "the targets", comparePause, func() (_ bool, err error) {
		count, differences, err = d.compare(ctx)
		return len(differences) == 0, err
	})
	if err != nil {
		return errors.Join(err, asError(differences))
	}
	d.figure("started", "all of %d objects are as their rows want them after %.2f s", count, took.Seconds())
	if _, err := d.converge(ctx); err != nil {
		return err
	}
	d.figure("verified by reconciler", "after %.2f s", time.Since(began).Seconds())
	return nil
}

// converge runs `reconciler wait`, returns how long that took, and compares everything.
func (d *demo) converge(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := d.show(ctx, 0, "wait", "--timeout", "60s"); err != nil {
		return 0, err
	}
	took := time.Since(began)
	_, err := d.equal(ctx)
	return took, err
}

// changes measures how long a commit takes to reach the files. Observed columns ask for nothing.
func (d *demo) changes(ctx context.Context) error {
	times, err := d.deploy(ctx, changedDeployments)
	if err != nil {
		return err
	}
	d.figure("from COMMIT to 3 files", "%s   (%d deployments)", spread(times), len(times))
	const events = "SELECT last_value FROM reconciler.outbox_seq"
	before, err := value[int64](ctx, d, events)
	if err != nil {
		return err
	}
	heartbeats, err := d.pool.Exec(ctx, "UPDATE fleet.topologies SET status = 'ready', ready_replicas = replicas, heartbeat_at = now() WHERE desired_status = 'running'")
	if err != nil {
		return err
	}
	after, err := value[int64](ctx, d, events)
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("%d changes of observed columns made %d events", heartbeats.RowsAffected(), after-before)
	}
	d.figure("heartbeats", "%d rows changed, %d events", heartbeats.RowsAffected(), after-before)
	return nil
}

// deployment is one that runs in three regions.
type deployment struct {
	ID    int64
	Files []string
}

// deploy gives deployments a new image, one after the other, and returns for each the time from the acknowledged commit
// until the last of its files, read as another program reads it, has the image.
func (d *demo) deploy(ctx context.Context, limit int) (times []time.Duration, err error) {
	rows, err := d.pool.Query(ctx, `SELECT deployment_id, array_agg(region || '/topology/' || id || '.json')
		FROM fleet.topologies WHERE region = ANY($1) AND desired_status = 'running'
		GROUP BY 1 HAVING count(*) = 3 ORDER BY md5(deployment_id::text) LIMIT $2`, regions, limit)
	if err != nil {
		return nil, err
	}
	deployments, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deployment])
	if err != nil {
		return nil, err
	}
	if len(deployments) < limit {
		return nil, fmt.Errorf("%d deployments run in all regions, and the step needs %d", len(deployments), limit)
	}
	for _, one := range deployments {
		image := fmt.Sprintf("registry.example/demo:%d", time.Now().UnixNano())
		if _, err := d.pool.Exec(ctx, "UPDATE fleet.deployments SET image = $2 WHERE id = $1", one.ID, image); err != nil {
			return nil, err
		}
		left := one.Files
		took, err := until(ctx, "a file to follow its row", watchPause, func() (bool, error) {
			for len(left) > 0 {
				if ok, err := hasText(filepath.Join(d.dir(""), left[0]), image); !ok || err != nil {
					return false, err
				}
				left = left[1:]
			}
			return true, nil
		})
		if err != nil {
			return nil, err
		}
		times = append(times, took)
		if err := rest(ctx, changePace); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// hasText reports whether a file, which must be whole, has a text in it.
func hasText(path, text string) (bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if !json.Valid(content) {
		return false, fmt.Errorf("%s was seen half-written: %q", path, content)
	}
	return bytes.Contains(content, []byte(text)), nil
}

// verdict compares everything a last time, ends the processes, which must end well, and prints the last line.
func (d *demo) verdict(ctx context.Context) error {
	count, err := d.equal(ctx)
	if err != nil {
		return err
	}
	for _, c := range []*child{d.agent, d.daemon} {
		if _, err := c.terminate(ctx); err != nil {
			return err
		}
	}
	d.say("\nVERDICT: ok: %d objects in %d targets equal their rows", count, len(fileTargets)+1)
	return nil
}
