package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	database      = "fleet"
	agentTarget   = "far-north"
	webhookTarget = "edge"
)

// fileTargets are the targets that are directories.
var fileTargets = []string{"ap-south", "eu-west", "us-east", agentTarget}

// regions are the targets of the example.
var regions = fileTargets[:3]

// additions are a region that is a webhook, one that an agent applies, and policies with names that no file may have.
const additions = `
INSERT INTO fleet.regions (code, name) VALUES ('edge', 'A partner, by webhook'), ('far-north', 'Behind a firewall, by an agent');
INSERT INTO fleet.network_policies (name, workspace_id, region, direction, action, cidr, port) VALUES
	('../../../../etc/passwd', 1, 'eu-west', 'ingress', 'deny', '10.9.0.0/24', 22), ('.hidden', 2, 'us-east', 'ingress', 'deny', '10.9.1.0/24', NULL),
	('-rf /', 3, 'ap-south', 'egress', 'allow', '::/0', NULL), ('Zürich office: 2nd floor', 4, NULL, 'ingress', 'allow', '10.9.2.0/24', 443);
INSERT INTO fleet.topologies (deployment_id, region)
SELECT deployment_id, 'far-north' FROM fleet.topologies WHERE region = 'eu-west' AND desired_status = 'running' ORDER BY id DESC LIMIT 40`

// moreTargets follows the config of the example. The webhook's pauses are short because the demo is. The objects of the
// stream count as applied when the agent has reported them.
const moreTargets = `
  - name: edge
    driver: webhook
    options: {url: "http://%s/objects"}
    backoff: {min: 250ms, max: 4s}
  - name: far-north
    driver: stream
    options: {ack: true}
streams: {listen: %q}
listen: off
`

// agentConfig is for `reconciler agent`. Its times are short because the demo is.
const agentConfig = `
server: "http://%s"
state_dir: %q
listen: off
targets:
  - {name: far-north, driver: file, options: {dir: %q}, sync_interval: 1s, timeout: 1s}
`

// setUp starts a server, fills it, and writes the configs.
func (d *demo) setUp(ctx context.Context) (err error) {
	began := time.Now()
	if d.binary, err = filepath.Abs(d.binary); err != nil {
		return err
	}
	if d.server, err = devdb.Start(ctx, devdb.Options{Image: d.image, Durable: true}); err != nil {
		return err
	}
	if err := d.server.CreateDatabase(ctx, database); err != nil {
		return err
	}
	if d.pool, err = pgxpool.New(ctx, d.server.URL(database)); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if d.log, err = os.Create(cmp.Or(d.logPath, filepath.Join(d.server.Dir, "reconciler.log"))); err != nil {
		return fmt.Errorf("make a file for the log: %w", err)
	}
	if d.hook, err = newHook(ctx); err != nil {
		return err
	}
	d.figure("PostgreSQL", "%s with fsync, started in %.2f s", d.server.Version, time.Since(began).Seconds())
	example, err := examples.Find("fleet")
	if err != nil {
		return err
	}
	if err := d.configure(ctx, example); err != nil {
		return err
	}
	if err := d.show(ctx, 0, "migrate", "up"); err != nil {
		return err
	}
	return d.load(ctx, example)
}

// configure writes the configs of the daemon and the agent, and makes the directories of targets.
func (d *demo) configure(ctx context.Context, example examples.Example) error {
	text, err := example.Config(d.server.URL(database), d.dir(""))
	if err != nil {
		return err
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("find a port for streams: %w", err)
	}
	streams := listener.Addr().String()
	listener.Close()
	d.config, d.agentConfig = filepath.Join(d.server.Dir, "reconciler.yaml"), filepath.Join(d.server.Dir, "agent.yaml")
	for path, text := range map[string]string{
		d.config:      text + fmt.Sprintf(moreTargets, d.hook.addr, streams),
		d.agentConfig: fmt.Sprintf(agentConfig, streams, filepath.Join(d.server.Dir, "agent"), d.dir(agentTarget)),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write a config: %w", err)
		}
	}
	for _, target := range fileTargets {
		if err := os.MkdirAll(d.dir(target), 0o700); err != nil {
			return fmt.Errorf("make a directory for target %s: %w", target, err)
		}
	}
	return nil
}

// load creates the schema of the example and fills it.
func (d *demo) load(ctx context.Context, example examples.Example) error {
	began := time.Now()
	db := stdlib.OpenDBFromPool(d.pool)
	defer db.Close()
	if err := example.Up(ctx, db); err != nil {
		return err
	}
	if err := example.Fill(ctx, db); err != nil {
		return err
	}
	if _, err := d.pool.Exec(ctx, additions); err != nil {
		return fmt.Errorf("add two regions: %w", err)
	}
	deployments, err := value[int](ctx, d, "SELECT count(*) FROM fleet.deployments")
	if err != nil {
		return err
	}
	live, err := value[int](ctx, d, "SELECT count(DISTINCT deployment_id) FROM fleet.topologies WHERE desired_status = 'running'")
	if err != nil {
		return err
	}
	d.figure("the fleet", "%d live deployments and %d of the past, loaded in %.2f s", live, deployments-live, time.Since(began).Seconds())
	return nil
}
