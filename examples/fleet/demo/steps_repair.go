package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	hiddenDeletes = 60
	hiddenStarts  = 10
	guardPause    = time.Second // in which a guard that does not hold would delete everything
)

// regionOff is the mistake that deletes a fleet: the guard holds it.
func (d *demo) regionOff(ctx context.Context) error {
	p := d.place("ap-south")
	before, err := p.files()
	if err != nil {
		return err
	}
	var running int
	if err := d.row(ctx, "SELECT count(*) FROM fleet.topologies WHERE region = $1 AND desired_status = 'running'", []any{p.name}, &running); err != nil {
		return err
	}
	if err := d.guardHolds(ctx, p, before); err != nil {
		return err
	}
	began := time.Now()
	said, err := d.show(ctx, 0, "approve", p.name)
	if err != nil {
		return err
	}
	d.screen.quote(said)
	if _, err := p.awaitFiles(ctx, before-running); err != nil {
		return err
	}
	d.screen.figure("approved", "%s files deleted after %s; %s of other resources stay", count(running), seconds(time.Since(began)), count(before-running))
	if _, err := d.exec(ctx, "UPDATE fleet.regions SET active = true WHERE code = $1", p.name); err != nil {
		return err
	}
	took, err := p.awaitFiles(ctx, before)
	if err != nil {
		return err
	}
	d.screen.figure("switched on again", "%s files applied after %s, or %s objects/s", count(running), seconds(took), count(int(float64(running)/took.Seconds())))
	return nil
}

// guardHolds switches the region off and sees that nothing is deleted.
func (d *demo) guardHolds(ctx context.Context, p place, before int) error {
	const mistake = "UPDATE fleet.regions SET active = false WHERE code = '%s'"
	d.screen.command(fmt.Sprintf("psql -c \""+mistake+"\"", p.name))
	if _, err := d.exec(ctx, fmt.Sprintf(mistake, p.name)); err != nil {
		return err
	}
	fewest := before
	if _, err := until(ctx, "the guard to hold", 5*time.Millisecond, func() (bool, string, error) {
		have, err := p.files()
		if err != nil {
			return false, "", err
		}
		fewest = min(fewest, have)
		var state string
		err = d.row(ctx, "SELECT state FROM reconciler.status WHERE target = $1", []any{p.name}, &state)
		return state == "held", "its state is " + state, err
	}); err != nil {
		return err
	}
	if err := rest(ctx, guardPause); err != nil {
		return err
	}
	have, err := p.files()
	if err != nil {
		return err
	}
	if fewest = min(fewest, have); fewest != before {
		return fmt.Errorf("the guard let %s pass", counted(before-fewest, "delete"))
	}
	text, err := d.status(ctx, p.name, "guard")
	if err != nil {
		return err
	}
	d.screen.figure("the guard holds", "0 of %s files deleted", count(before))
	d.screen.figure("reconciler status says", "%s", text)
	return nil
}

// status returns a column of `reconciler status`, which must not be empty.
func (d *demo) status(ctx context.Context, target, column string) (string, error) {
	said, err := d.tell(ctx, "status", target, "-o", "json")
	if err != nil {
		return "", err
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(said), &rows); err != nil || len(rows) != 1 {
		return "", fmt.Errorf("`reconciler status %s -o json` printed %q: want one row: %w", target, said, err)
	}
	text, ok := rows[0][column].(string)
	if !ok || text == "" {
		return "", fmt.Errorf("`reconciler status %s` has nothing in column %s: %s", target, column, said)
	}
	return text, nil
}

// behindTriggers changes rows and files so that no event tells of it; a sync finds all of it.
func (d *demo) behindTriggers(ctx context.Context) error {
	p := d.place("us-east")
	before, err := p.files()
	if err != nil {
		return err
	}
	deleted, started, err := d.changeUnseen(ctx, p.name)
	if err != nil {
		return err
	}
	spoiled, removed, err := d.spoil(ctx, p)
	if err != nil {
		return err
	}
	if err := rest(ctx, guardPause); err != nil {
		return err
	}
	if have, err := p.files(); err != nil || have != before-1 {
		return errors.Join(err, fmt.Errorf("%s had %s files, now %s: something noticed", p.name, count(before), count(have)))
	}
	d.screen.figure("changed in us-east, unseen", "%s deleted, %d started, 1 file edited, 1 file removed", counted(len(deleted), "row"), len(started))
	began := time.Now()
	said, err := d.show(ctx, 0, "sync", p.name, "--wait")
	took := time.Since(began)
	if err != nil {
		return err
	}
	d.screen.quote(withoutWait(said))
	if _, err := d.check(ctx); err != nil {
		return err
	}
	if err := exist(deleted, p, false); err != nil {
		return err
	}
	if err := exist(append(started, spoiled, removed), p, true); err != nil {
		return err
	}
	d.screen.figure("found and repaired", "%s after %s", counted(len(deleted)+len(started)+2, "object"), seconds(took))
	return nil
}

// changeUnseen deletes running topologies and starts stopped ones, without any trigger.
func (d *demo) changeUnseen(ctx context.Context, region string) (deleted, started []int64, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL session_replication_role = replica"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `DELETE FROM fleet.topologies WHERE id IN (
			SELECT id FROM fleet.topologies WHERE region = $1 AND desired_status = 'running' ORDER BY md5(id::text) LIMIT $2) RETURNING id`, region, hiddenDeletes)
		if err != nil {
			return err
		}
		if deleted, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `UPDATE fleet.topologies SET desired_status = 'running' WHERE id IN (
			SELECT id FROM fleet.topologies WHERE region = $1 AND desired_status = 'stopped' ORDER BY md5(id::text) LIMIT $2) RETURNING id`, region, hiddenStarts)
		if err != nil {
			return err
		}
		started, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("change rows with triggers disabled: %w", err)
	}
	if len(deleted) != hiddenDeletes || len(started) != hiddenStarts {
		return nil, nil, fmt.Errorf("deleted %d and started %d rows, not %d and %d", len(deleted), len(started), hiddenDeletes, hiddenStarts)
	}
	return deleted, started, nil
}

// spoil edits one file by hand and removes another.
func (d *demo) spoil(ctx context.Context, p place) (edited, removed int64, err error) {
	ids, err := list[int64](ctx, d, "SELECT id FROM fleet.topologies WHERE region = $1 AND desired_status = 'running' AND id < (SELECT max(id) - 100 FROM fleet.topologies) ORDER BY id DESC LIMIT 2", p.name)
	if err != nil {
		return 0, 0, err
	}
	if err := os.WriteFile(p.topology(ids[0]), []byte("{\"replicas\": 1000}\n"), 0o600); err != nil {
		return 0, 0, fmt.Errorf("edit a file: %w", err)
	}
	if err := os.Remove(p.topology(ids[1])); err != nil {
		return 0, 0, fmt.Errorf("remove a file: %w", err)
	}
	return ids[0], ids[1], nil
}

// exist says of each topology whether its file is there.
func exist(ids []int64, p place, want bool) error {
	for _, id := range ids {
		_, err := os.Stat(p.topology(id))
		if is := err == nil; is != want {
			return fmt.Errorf("%s: want it to be there: %t, and it is: %t", p.topology(id), want, is)
		}
	}
	return nil
}

// withoutWait drops what `sync --wait` says while it waits.
func withoutWait(said string) string {
	return strings.TrimPrefix(said, "everything is applied\n")
}
