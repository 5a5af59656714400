package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	burstBefore   = 1500 * time.Millisecond // of the burst, before the process is ended
	burstAfter    = 700 * time.Millisecond  // of the burst, while no process runs
	edgeObjects   = 60
	edgeRefuses   = 2500 * time.Millisecond // how long the endpoint answers 503
	edgeIsAway    = 3 * time.Second         // how long nobody answers
	flowPace      = 25 * time.Millisecond
	recoveryPause = 200 * time.Millisecond // between two comparisons of everything
	waitImpatient = "1s"
)

// killed ends the process without warning while rows change, and starts another one.
func (d *demo) killed(ctx context.Context) error {
	b, err := d.startBurst(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = b.end() }() // its error is looked at below, when the step gets there
	if err := rest(ctx, burstBefore); err != nil {
		return err
	}
	d.child.kill()
	atKill := b.commits.Load()
	if err := rest(ctx, burstAfter); err != nil {
		return err
	}
	commits, err := b.end()
	if err != nil {
		return err
	}
	dead, err := d.compare(ctx)
	if err != nil {
		return err
	}
	if len(dead.differences) == 0 {
		return errors.New("no file differs while no process runs: the comparison sees nothing")
	}
	d.screen.figure("killed", "after %s commits; %s more followed", count(int(atKill)), count(commits-int(atKill)))
	d.screen.figure("while nobody runs", "%s of %s files differ from the rows", count(len(dead.differences)), count(dead.files))
	return d.recovers(ctx)
}

// recovers starts the process after a kill, and measures until every file is right, and until it knows that.
func (d *demo) recovers(ctx context.Context) error {
	began := time.Now()
	if err := d.start(); err != nil {
		return err
	}
	var after comparison
	right, err := until(ctx, "all files to be as the rows want", recoveryPause, func() (bool, string, error) {
		var err error
		after, err = d.compare(ctx)
		return len(after.differences) == 0, counted(len(after.differences), "object") + " differ", err
	})
	if err != nil {
		return err
	}
	d.screen.figure("started again", "all files right after %s; the leases of the dead process, at most 9.5 s, run out first", seconds(right))
	if _, err := d.tell(ctx, "wait", "--timeout", patience.String()); err != nil {
		return err
	}
	d.screen.figure("", "and verified by a sync after %s, when its last call must have ended", seconds(time.Since(began)))
	if after, err = d.check(ctx); err != nil {
		return err
	}
	d.screen.figure("nothing is lost", "0 of %s files differ from the rows", count(after.files))
	return nil
}

// restart starts the process and returns when it has applied everything.
func (d *demo) restart(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	if err := d.start(); err != nil {
		return 0, err
	}
	if said, err := d.tell(ctx, "wait", "--timeout", patience.String()); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, said)
	}
	return time.Since(began), nil
}

// drained asks the process to end while rows change.
func (d *demo) drained(ctx context.Context) error {
	b, err := d.startBurst(ctx)
	if err != nil {
		return err
	}
	defer func() { _, _ = b.end() }() // its error is looked at below, when the step gets there
	if err := rest(ctx, burstBefore); err != nil {
		return err
	}
	code, took, err := d.child.terminate(ctx)
	if err != nil {
		return err
	}
	commits, err := b.end()
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("after SIGTERM it ended with exit code %d", code)
	}
	var failed int
	if err := d.row(ctx, "SELECT count(*) FROM reconciler.objects WHERE attempts > 0 OR state IN ('failing', 'blocked')", nil, &failed); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("draining counted %s as failed", counted(failed, "object"))
	}
	d.screen.figure("ended", "exit code 0 after %s, among %s commits; 0 objects counted as failed", seconds(took), count(commits))
	if took, err = d.restart(ctx); err != nil {
		return err
	}
	d.screen.figure("started again", "everything applied after %s: leases were given back", seconds(took))
	return nil
}

// failing has the webhook answer 503, then not at all, then well again.
func (d *demo) failing(ctx context.Context) error {
	had, askedBefore := d.hook.has()
	d.hook.breakDown()
	began := time.Now()
	n, err := d.exec(ctx, `INSERT INTO fleet.topologies (deployment_id, region, replicas)
		SELECT deployment_id, 'edge', replicas FROM fleet.topologies WHERE region = 'eu-west' AND desired_status = 'running' ORDER BY id LIMIT $1`, edgeObjects)
	if err != nil {
		return err
	}
	flow, err := d.flow(ctx, began.Add(edgeRefuses))
	if err != nil {
		return err
	}
	_, asked := d.hook.has()
	d.screen.figure("edge answers 503", "%s in %s for %s: each backs off on its own", counted(asked-askedBefore, "request"), seconds(time.Since(began)), counted(n, "object"))
	d.screen.figure("eu-west meanwhile", "%v", flow)
	if err := d.away(ctx, n); err != nil {
		return err
	}
	began = time.Now()
	if err := d.hook.open(ctx); err != nil {
		return err
	}
	if _, err := until(ctx, "edge to get what it missed", 5*time.Millisecond, func() (bool, string, error) {
		have, _ := d.hook.has()
		return len(have) == len(had)+n, "it has " + counted(len(have), "object"), nil
	}); err != nil {
		return err
	}
	d.screen.figure("edge is back", "%s applied after %s", counted(n, "object"), seconds(time.Since(began)))
	_, err = d.show(ctx, 0, "wait", "--target", "edge")
	return err
}

// away has nobody listen where the webhook was.
func (d *demo) away(ctx context.Context, objects int) error {
	d.hook.close()
	var attempts int
	const attemptsSQL = "SELECT coalesce(sum(attempts), 0)::int FROM reconciler.objects WHERE target = 'edge'"
	if _, err := until(ctx, "the circuit of edge to open", 20*time.Millisecond, func() (bool, string, error) {
		var state string
		err := d.row(ctx, "SELECT state FROM reconciler.status WHERE target = 'edge'", nil, &state)
		return state == "down", "its state is " + state, err
	}); err != nil {
		return err
	}
	if err := d.row(ctx, attemptsSQL, nil, &attempts); err != nil {
		return err
	}
	flow, err := d.flow(ctx, time.Now().Add(edgeIsAway))
	if err != nil {
		return err
	}
	text, err := d.status(ctx, "edge", "circuit")
	if err != nil {
		return err
	}
	var later int
	if err := d.row(ctx, attemptsSQL, nil, &later); err != nil {
		return err
	}
	d.screen.figure("edge is gone", "its circuit opens: %s", text)
	d.screen.figure("", "one fact, not %s failing objects: %s charged with an attempt since", count(objects), count(later-attempts))
	d.screen.figure("eu-west meanwhile", "%v", flow)
	said, err := d.show(ctx, exitTimeout, "wait", "--timeout", waitImpatient)
	if err != nil {
		return err
	}
	d.screen.quote(abridged(said, 1))
	return nil
}

// flow changes rows of eu-west until a moment, and returns how long each took to its file.
func (d *demo) flow(ctx context.Context, end time.Time) (latencies, error) {
	ids, err := list[int64](ctx, d, "SELECT id FROM fleet.topologies WHERE region = 'eu-west' AND desired_status = 'running' ORDER BY md5(id::text)")
	if err != nil {
		return nil, err
	}
	pace := time.NewTicker(flowPace)
	defer pace.Stop()
	var all latencies
	for n := 0; time.Now().Before(end); n++ {
		took, err := d.changeTopology(ctx, ids[n%len(ids)])
		if err != nil {
			return nil, err
		}
		all = append(all, took)
		<-pace.C
	}
	return all, nil
}
