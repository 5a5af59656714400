package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	changesMeanwhile = 40 // while a target fails
	releaseImage     = "registry.example/release:42"
	// releaseHalted is how targets are after the webhook has refused the release: the ones before it have it, those after it do not.
	releaseHalted = "ap-south completed, edge failed, eu-west halted, us-east halted"
)

// failing closes the webhook, and opens it again.
func (d *demo) failing(ctx context.Context) error {
	d.hook.close()
	added, err := d.pool.Exec(ctx, `INSERT INTO fleet.topologies (deployment_id, region, replicas)
		SELECT deployment_id, 'edge', replicas FROM fleet.topologies WHERE region = 'eu-west' AND desired_status = 'running' ORDER BY id LIMIT 60`)
	if err != nil {
		return err
	}
	if err := d.untilState(ctx, webhookTarget, "down"); err != nil {
		return err
	}
	times, err := d.deploy(ctx, changesMeanwhile)
	if err != nil {
		return err
	}
	d.figure("from COMMIT to 3 files", "%s   (%d deployments, while edge is down)", spread(times), len(times))
	if err := d.show(ctx, 0, "status", webhookTarget); err != nil {
		return err
	}
	newest, err := value[int64](ctx, d, "SELECT max(id) FROM fleet.topologies WHERE region = $1", webhookTarget)
	if err != nil {
		return err
	}
	if err := d.show(ctx, 0, "explain", webhookTarget, "topology", strconv.FormatInt(newest, 10)); err != nil {
		return err
	}
	if err := d.hook.open(ctx); err != nil {
		return err
	}
	took, err := d.converge(ctx)
	if err != nil {
		return err
	}
	d.figure("edge is back", "%d new objects applied after %.2f s, which includes the pause until the next probe", added.RowsAffected(), took.Seconds())
	return nil
}

// release rolls a change over the targets, one after the other. The webhook refuses it until that is mended.
func (d *demo) release(ctx context.Context) error {
	const change = "UPDATE fleet.deployments SET image = $1 WHERE id IN (SELECT deployment_id FROM fleet.topologies WHERE region = 'edge' AND desired_status = 'running' ORDER BY id LIMIT 40)"
	d.quote(`psql -c "BEGIN; SELECT reconciler.begin_apply('release 42'); UPDATE fleet.deployments SET image = '`+releaseImage+`' ...; COMMIT"`, "")
	d.hook.refuse(releaseImage)
	var id int64
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT reconciler.begin_apply('release 42')").Scan(&id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, change, releaseImage)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin the release: %w", err)
	}
	number := strconv.FormatInt(id, 10)
	const failed = 1
	if err := d.show(ctx, failed, "apply", "wait", number); err != nil {
		return err
	}
	if err := d.show(ctx, 0, "apply", "show", number); err != nil {
		return err
	}
	if err := d.halted(ctx, id); err != nil {
		return err
	}
	d.hook.refuse("")
	began := time.Now()
	if err := d.show(ctx, 0, "apply", "retry", number); err != nil {
		return err
	}
	if err := d.show(ctx, 0, "apply", "wait", number); err != nil {
		return err
	}
	d.figure("the webhook is mended", "completed after %.2f s", time.Since(began).Seconds())
	_, err = d.equal(ctx)
	return err
}

// halted returns an error unless the release has stopped where it failed: no object after that has changed.
func (d *demo) halted(ctx context.Context, id int64) error {
	states, err := value[string](ctx, d, "SELECT string_agg(target || ' ' || state, ', ' ORDER BY ordinal) FROM reconciler.apply_targets WHERE apply = $1", id)
	if err != nil {
		return err
	}
	left, err := value[int](ctx, d, "SELECT sum(tasks - completed)::int FROM reconciler.apply_targets WHERE apply = $1", id)
	if err != nil {
		return err
	}
	_, differences, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if states != releaseHalted || len(differences) != left {
		return fmt.Errorf("the release is: %s, with %d objects left, and %d objects keep what they had; want: %s", states, left, len(differences), releaseHalted)
	}
	d.figure("halted", "ap-south has the release; the other %d objects keep what they had", len(differences))
	return nil
}
