package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	changedTopologies  = 120
	changedDeployments = 80
	changePace         = 25 * time.Millisecond
)

// initialSync starts the process in front of empty targets.
func (d *demo) initialSync(ctx context.Context) error {
	before, err := d.compare(ctx)
	if err == nil && before.files+before.leftovers > 0 {
		err = fmt.Errorf("there are files already")
	}
	if err != nil {
		return err
	}
	began := time.Now()
	if err := errors.Join(d.start(), d.startAgent()); err != nil {
		return err
	}
	_, err = until(ctx, "the first sync", 10*time.Millisecond, func() (bool, string, error) {
		have := 0
		for _, p := range d.places {
			n, err := p.files()
			if err != nil {
				return false, "", err
			}
			have += n
		}
		objects, _ := d.hook.has()
		return have == before.rows && len(objects) == before.edge, counted(have, "file") + " and " + counted(len(objects), "object") + " are there", nil
	})
	took := time.Since(began)
	if err != nil {
		return err
	}
	if _, err := d.tell(ctx, "wait"); err != nil {
		return err
	}
	if _, err := d.check(ctx); err != nil {
		return err
	}
	all := before.rows + before.edge
	d.screen.figure("applied", "%s files in 4 directories, one of them by an agent, and %s in a webhook", count(before.rows), counted(before.edge, "object"))
	d.screen.figure("from the process's start", "%s, or %s objects/s", seconds(took), count(int(float64(all)/took.Seconds())))
	return nil
}

// changes measures how long a commit takes to reach the files.
func (d *demo) changes(ctx context.Context) error {
	topologies, err := list[int64](ctx, d, "SELECT id FROM fleet.topologies WHERE desired_status = 'running' ORDER BY md5(id::text) LIMIT $1", changedTopologies)
	if err != nil {
		return err
	}
	deployments, err := list[int64](ctx, d, "SELECT deployment_id FROM fleet.topologies WHERE desired_status = 'running' AND region = 'eu-west' ORDER BY md5(id::text) LIMIT $1", changedDeployments)
	if err != nil {
		return err
	}
	one, three, err := d.measure(ctx, topologies, deployments)
	if err != nil {
		return err
	}
	d.screen.figure("from COMMIT to the file", "%v   (%d topologies, each a file)", one, len(one))
	d.screen.figure("... to the last of 3", "%v   (%d deployments, each joined into 3 files)", three, len(three))
	return d.heartbeats(ctx)
}

// measure changes one row after the other, two kinds in turn.
func (d *demo) measure(ctx context.Context, topologies, deployments []int64) (one, three latencies, err error) {
	pace := time.NewTicker(changePace)
	defer pace.Stop()
	for n := range max(len(topologies), len(deployments)) {
		if n < len(topologies) {
			took, err := d.changeTopology(ctx, topologies[n])
			if err != nil {
				return nil, nil, err
			}
			one = append(one, took)
			<-pace.C
		}
		if n < len(deployments) {
			took, err := d.changeDeployment(ctx, deployments[n], fmt.Sprintf("registry.example/demo:%d", n))
			if err != nil {
				return nil, nil, err
			}
			three = append(three, took)
			<-pace.C
		}
	}
	return one, three, nil
}

// changeTopology returns the time from the acknowledged commit to the new file.
func (d *demo) changeTopology(ctx context.Context, id int64) (time.Duration, error) {
	var region string
	var replicas int
	if err := d.row(ctx, "SELECT region, replicas % 9 + 1 FROM fleet.topologies WHERE id = $1", []any{id}, &region, &replicas); err != nil {
		return 0, err
	}
	file, err := watch(d.place(region).topology(id), "replicas", float64(replicas))
	if err != nil {
		return 0, err
	}
	if _, err := d.exec(ctx, "UPDATE fleet.topologies SET replicas = $2 WHERE id = $1", id, replicas); err != nil {
		return 0, err
	}
	return await(ctx, []watched{file})
}

// changeDeployment is changeTopology for a row that is joined into three objects.
func (d *demo) changeDeployment(ctx context.Context, id int64, image string) (time.Duration, error) {
	var files []watched
	for _, p := range d.places[:3] { // those that have every deployment
		var topology int64
		if err := d.row(ctx, "SELECT id FROM fleet.topologies WHERE deployment_id = $1 AND region = $2", []any{id, p.name}, &topology); err != nil {
			return 0, err
		}
		file, err := watch(p.topology(topology), "image", image)
		if err != nil {
			return 0, err
		}
		files = append(files, file)
	}
	if _, err := d.exec(ctx, "UPDATE fleet.deployments SET image = $2 WHERE id = $1", id, image); err != nil {
		return 0, err
	}
	return await(ctx, files)
}

// heartbeats writes observed columns, which ask for nothing.
func (d *demo) heartbeats(ctx context.Context) error {
	const events = "SELECT last_value FROM reconciler.outbox_seq"
	var before, after int64
	if err := d.row(ctx, events, nil, &before); err != nil {
		return err
	}
	n, err := d.exec(ctx, "UPDATE fleet.topologies SET status = 'ready', ready_replicas = replicas, heartbeat_at = now() WHERE desired_status = 'running'")
	if err != nil {
		return err
	}
	if err := d.row(ctx, events, nil, &after); err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("%s of observed columns made %s", counted(n, "change"), counted(int(after-before), "event"))
	}
	d.screen.figure(counted(n, "heartbeat"), "0 events: observed columns ask for nothing")
	return nil
}

// waitAndExplain shows how a script and a person ask.
func (d *demo) waitAndExplain(ctx context.Context) error {
	var id int64
	if err := d.row(ctx, "UPDATE fleet.topologies SET replicas = 7 WHERE id = (SELECT max(id) FROM fleet.topologies WHERE desired_status = 'running' AND region = 'us-east') RETURNING id", nil, &id); err != nil {
		return err
	}
	began := time.Now()
	said, err := d.show(ctx, 0, "wait", "--timeout", "30s")
	if err != nil {
		return err
	}
	d.screen.quote(said)
	d.screen.figure("", "after %s, of which most is the start of the command", seconds(time.Since(began)))
	said, err = d.show(ctx, 0, "explain", "us-east", "topology", fmt.Sprint(id))
	if err != nil {
		return err
	}
	d.screen.quote(said)
	return nil
}

// show prints a command and runs it; it must end with this exit code.
func (d *demo) show(ctx context.Context, code int, args ...string) (string, error) {
	line := strings.Join(append([]string{"reconciler"}, args...), " ")
	d.screen.command(line)
	said, err := d.ask(ctx, args...)
	if err == nil && said.code != code {
		err = fmt.Errorf("`%s` ended with exit code %d, not %d: %s", line, said.code, code, said.text)
	}
	return said.text, err
}
