package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	// farRegion is applied by an agent, which reaches the daemon over a line.
	farRegion  = "far-north"
	farChanges = 10 // while the line is cut
	farSpoiled = "{\"replicas\": 1000}\n"
)

// farTarget is a stream, whose objects count as applied when the agent has reported them.
const farTarget = `  - name: ` + farRegion + `
    driver: stream
    options: {ack: true}
streams: {listen: %q}
`

// configureAgent writes the config of the agent. Its times are short because the demo is.
func (d *demo) configureAgent(dir string) error {
	text, err := json.Marshal(map[string]any{
		"server": "http://" + d.line.addr, "state_dir": filepath.Join(d.server.Dir, "agent"), "listen": "off",
		"targets": []any{map[string]any{"name": farRegion, "driver": "file", "options": map[string]any{"dir": dir}, "sync_interval": "1s", "timeout": "1s"}},
	})
	if err != nil {
		return fmt.Errorf("write the agent's config: %w", err)
	}
	d.agentConfig = filepath.Join(d.server.Dir, "agent.yaml")
	if err := os.WriteFile(d.agentConfig, text, 0o600); err != nil {
		return fmt.Errorf("write the agent's config: %w", err)
	}
	return nil
}

// startAgent starts `reconciler agent`.
func (d *demo) startAgent() (err error) {
	d.agent, err = startChild(d.binary, "agent", d.agentConfig, d.log, d.cancel)
	return err
}

// cutOff cuts the line to an agent, which goes on with what it knows, and gets the rest later.
func (d *demo) cutOff(ctx context.Context) error {
	p := d.place(farRegion)
	ids, err := list[int64](ctx, d, "SELECT id FROM fleet.topologies WHERE region = $1 AND desired_status = 'running' ORDER BY id", p.name)
	if err != nil {
		return err
	}
	if len(ids) < 2*farChanges {
		return fmt.Errorf("%s has %s, and the step needs %d", p.name, counted(len(ids), "topology"), 2*farChanges)
	}
	before, err := p.files()
	if err != nil {
		return err
	}
	d.line.close()
	d.screen.figure("cut off", "%s files in %s, where only the agent can write", count(before), p.name)
	if err := d.changeUnheard(ctx, ids); err != nil {
		return err
	}
	if err := d.repairs(ctx, p, ids[len(ids)-1]); err != nil {
		return err
	}
	d.agent.kill()
	if err := d.startAgent(); err != nil {
		return err
	}
	if err := d.repairs(ctx, p, ids[len(ids)-2]); err != nil {
		return err
	}
	d.screen.figure("", "also by a new process, after kill -9: what it needs is in its state_dir")
	if have, err := p.files(); err != nil || have != before {
		return errors.Join(err, fmt.Errorf("%s has %s files, and had %s", p.name, count(have), count(before)))
	}
	said, err := d.show(ctx, exitTimeout, "wait", "--target", p.name, "--timeout", waitImpatient)
	if err != nil {
		return err
	}
	d.screen.quote(abridged(said, 1))
	began := time.Now()
	if err := d.line.open(ctx); err != nil {
		return err
	}
	if _, err := d.show(ctx, 0, "wait", "--target", p.name); err != nil {
		return err
	}
	d.screen.figure("connected again", "%d changes and %d deletes there, and reported, after %s", farChanges, farChanges, seconds(time.Since(began)))
	_, err = d.check(ctx)
	return err
}

// changeUnheard changes some topologies, and stops others.
func (d *demo) changeUnheard(ctx context.Context, ids []int64) error {
	for n, id := range ids[:2*farChanges] {
		sql := "UPDATE fleet.topologies SET replicas = replicas % 9 + 1 WHERE id = $1"
		if n%2 == 0 {
			sql = "UPDATE fleet.topologies SET desired_status = 'stopped' WHERE id = $1"
		}
		if _, err := d.exec(ctx, sql, id); err != nil {
			return err
		}
	}
	return nil
}

// repairs spoils a file by hand, and waits until the agent has repaired it.
func (d *demo) repairs(ctx context.Context, p place, id int64) error {
	want, err := os.ReadFile(p.topology(id))
	if err != nil {
		return fmt.Errorf("read a file: %w", err)
	}
	if err := os.WriteFile(p.topology(id), []byte(farSpoiled), 0o600); err != nil {
		return fmt.Errorf("edit a file: %w", err)
	}
	took, err := until(ctx, "the agent to repair a file", 5*time.Millisecond, func() (bool, string, error) {
		have, err := os.ReadFile(p.topology(id))
		return string(have) == string(want), string(have), err
	})
	if err == nil {
		d.screen.figure("a file edited by hand", "repaired after %s, without the daemon", seconds(took))
	}
	return err
}
