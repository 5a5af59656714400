package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// unheeded is how long a step waits for what must not happen.
const unheeded = time.Second

// regionOff is the mistake that deletes a fleet: the guard holds it.
func (d *demo) regionOff(ctx context.Context) error {
	const target, mistake = "ap-south", "UPDATE fleet.regions SET active = false WHERE code = 'ap-south'"
	running, err := value[int](ctx, d, "SELECT count(*) FROM fleet.topologies WHERE region = $1 AND desired_status = 'running'", target)
	if err != nil {
		return err
	}
	d.quote(`psql -c "`+mistake+`"`, "")
	if _, err := d.pool.Exec(ctx, mistake); err != nil {
		return err
	}
	if err := d.untilState(ctx, target, "held"); err != nil {
		return err
	}
	if err := rest(ctx, unheeded); err != nil {
		return err
	}
	_, differences, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if len(differences) != running {
		return fmt.Errorf("the guard let %d of %d deletes pass", running-len(differences), running)
	}
	d.figure("the guard holds", "%d files that no row wants are still there", len(differences))
	if err := d.show(ctx, 0, "status", target); err != nil {
		return err
	}
	if err := d.show(ctx, 0, "approve", target); err != nil {
		return err
	}
	took, err := d.converge(ctx)
	if err != nil {
		return err
	}
	d.figure("approved", "%d files deleted after %.2f s", running, took.Seconds())
	if _, err := d.pool.Exec(ctx, "UPDATE fleet.regions SET active = true WHERE code = $1", target); err != nil {
		return err
	}
	if took, err = d.converge(ctx); err != nil {
		return err
	}
	d.figure("switched on again", "%d files applied after %.2f s", running, took.Seconds())
	return nil
}

// untilState waits until a target has a state.
func (d *demo) untilState(ctx context.Context, target, state string) error {
	_, err := until(ctx, target+" to be "+state, 20*time.Millisecond, func() (bool, error) {
		is, err := value[string](ctx, d, "SELECT state FROM reconciler.status WHERE target = $1", target)
		return is == state, err
	})
	return err
}

// changeUnseen deletes 60 running topologies and starts 10 that are stopped, without any trigger.
const changeUnseen = `BEGIN;
SET LOCAL session_replication_role = replica;
DELETE FROM fleet.topologies WHERE id IN (
	SELECT id FROM fleet.topologies WHERE region = 'us-east' AND desired_status = 'running' ORDER BY md5(id::text) LIMIT 60);
UPDATE fleet.topologies SET desired_status = 'running' WHERE id IN (
	SELECT id FROM fleet.topologies WHERE region = 'us-east' AND desired_status = 'stopped' ORDER BY md5(id::text) LIMIT 10);
COMMIT`

// behindTriggers changes rows and files without an event. A sync finds all of it.
func (d *demo) behindTriggers(ctx context.Context) error {
	const target, changes = "us-east", 60 + 10 + 1 + 1
	ids, err := value[[]int64](ctx, d, "SELECT array_agg(id ORDER BY md5(id::text) DESC) FROM fleet.topologies WHERE region = $1 AND desired_status = 'running'", target)
	if err != nil {
		return err
	}
	file := func(id int64) string { return fmt.Sprintf("%s/topology/%d.json", d.dir(target), id) }
	if _, err := d.pool.Exec(ctx, changeUnseen); err != nil {
		return fmt.Errorf("change rows with triggers disabled: %w", err)
	}
	if err := os.WriteFile(file(ids[0]), []byte(spoiled), 0o600); err != nil {
		return fmt.Errorf("edit a file: %w", err)
	}
	if err := os.Remove(file(ids[1])); err != nil {
		return fmt.Errorf("remove a file: %w", err)
	}
	if err := rest(ctx, unheeded); err != nil {
		return err
	}
	_, differences, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if len(differences) != changes {
		return fmt.Errorf("%d objects differ from their rows after %d changes without an event", len(differences), changes)
	}
	d.figure("changed without an event", "%d objects of %s differ from their rows", len(differences), target)
	began := time.Now()
	if err := d.show(ctx, 0, "sync", target, "--wait"); err != nil {
		return err
	}
	took := time.Since(began)
	if _, err := d.equal(ctx); err != nil {
		return err
	}
	d.figure("found and repaired", "%d objects after %.2f s", len(differences), took.Seconds())
	return nil
}
