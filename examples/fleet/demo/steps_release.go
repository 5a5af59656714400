package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	releaseDeployments = 40
	releaseImage       = "registry.example/release:42"
	// releaseHalted is how targets are after the webhook has refused the release: the ones before it have it, those after it do not.
	releaseHalted = "ap-south completed, edge failed, eu-west halted, us-east halted"
)

// release rolls a change over the targets, one after the other. The webhook refuses it, until somebody mends that.
func (d *demo) release(ctx context.Context) error {
	d.hook.refuse(releaseImage)
	const change = "UPDATE fleet.deployments SET image = $1 WHERE id IN (SELECT deployment_id FROM fleet.topologies WHERE region = 'edge' AND desired_status = 'running' ORDER BY id LIMIT $2)"
	d.screen.command(fmt.Sprintf("psql -c \"BEGIN; SELECT reconciler.begin_apply('release 42'); UPDATE fleet.deployments SET image = '%s' ...; COMMIT\"", releaseImage))
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT reconciler.begin_apply('release 42')").Scan(&d.released); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, change, releaseImage, releaseDeployments)
		return err
	})
	if err != nil {
		return fmt.Errorf("begin the release: %w", err)
	}
	number := fmt.Sprint(d.released)
	if _, err := d.show(ctx, exitDiffers, "apply", "wait", number); err != nil {
		return err
	}
	said, err := d.show(ctx, 0, "apply", "show", number)
	if err != nil {
		return err
	}
	d.screen.quote(said)
	if err := d.halted(ctx); err != nil {
		return err
	}
	d.hook.refuse("")
	return d.goesOn(ctx, number)
}

// halted sees that the release has stopped where it failed: no file after that has changed.
func (d *demo) halted(ctx context.Context) error {
	var states string
	var left int
	if err := d.row(ctx, `SELECT string_agg(target || ' ' || state, ', ' ORDER BY ordinal), sum(tasks - completed)::int
		FROM reconciler.apply_targets WHERE apply = $1`, []any{d.released}, &states, &left); err != nil {
		return err
	}
	if states != releaseHalted {
		return fmt.Errorf("the release is: %s; want: %s", states, releaseHalted)
	}
	c, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if len(c.differences) != left {
		return fmt.Errorf("%s keep what they had, and the release has %s left", counted(len(c.differences), "object"), counted(left, "object"))
	}
	d.screen.figure("halted", "ap-south has the release; the other %s keep what they had", counted(left, "object"))
	return nil
}

// goesOn tries the release again, which now goes everywhere.
func (d *demo) goesOn(ctx context.Context, number string) error {
	began := time.Now()
	for _, command := range []string{"retry", "wait"} {
		said, err := d.show(ctx, 0, "apply", command, number)
		if err != nil {
			return err
		}
		d.screen.quote(said)
	}
	d.screen.figure("the webhook is mended", "completed after %s", seconds(time.Since(began)))
	if _, err := d.check(ctx); err != nil {
		return err
	}
	return d.releaseIsOut(ctx)
}

// releaseIsOut sees that the release ended well, and that its log says how it went.
func (d *demo) releaseIsOut(ctx context.Context) error {
	var state, log string
	if err := d.row(ctx, `SELECT a.state, (SELECT string_agg(CASE l.what WHEN 'state' THEN l.state ELSE l.what END, ' ' ORDER BY l.id) FROM reconciler.apply_log l WHERE l.apply_id = a.id)
		FROM reconciler.applies a WHERE a.id = $1`, []any{d.released}, &state, &log); err != nil {
		return err
	}
	return wentOut(state, log)
}

// wentOut judges the state of the release and its log: it failed, was tried again, and is completed.
func wentOut(state, log string) error {
	before, after, retried := strings.Cut(log, " retry ")
	if state != "completed" || !retried || !strings.HasSuffix(before, " failed") || !strings.HasSuffix(" "+after, " completed") {
		return fmt.Errorf("the release is %s, and its log says: %s; want it to have failed, to be tried again and to be completed", state, log)
	}
	return nil
}
