package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // goose needs database/sql

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/internal/devdb"
)

const (
	database  = "fleet"
	poolConns = 8
)

// odd adds a region that is a webhook, one that an agent applies, and policies with names that no file may have.
const odd = `
INSERT INTO fleet.regions (code, name) VALUES ('edge', 'A partner, by webhook');
INSERT INTO fleet.network_policies (name, workspace_id, region, direction, action, cidr, port) VALUES
	('../../../../etc/passwd', 1, 'eu-west', 'ingress', 'deny', '10.9.0.0/24', 22), ('.hidden', 2, 'us-east', 'ingress', 'deny', '10.9.1.0/24', NULL),
	('-rf /', 3, 'ap-south', 'egress', 'allow', '::/0', NULL), ('Zürich office: 2nd floor', 4, NULL, 'ingress', 'allow', '10.9.2.0/24', 443);
INSERT INTO fleet.regions (code, name) VALUES ('far-north', 'Behind a firewall, by an agent');
INSERT INTO fleet.topologies (deployment_id, region)
SELECT deployment_id, 'far-north' FROM fleet.topologies WHERE region = 'eu-west' AND desired_status = 'running' ORDER BY id DESC LIMIT 40`

// setUp starts a server, fills it, and writes the config.
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
	if err := d.openLog(); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(d.server.URL(database))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	config.MaxConns = poolConns
	if d.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	d.screen.figure("PostgreSQL", "%s with fsync, started in %s", d.server.Version, seconds(time.Since(began)))
	if d.hook, err = openHook(ctx); err != nil {
		return err
	}
	if d.line, err = openLine(ctx); err != nil {
		return err
	}
	return d.load(ctx)
}

// load migrates the database and fills it.
func (d *demo) load(ctx context.Context) error {
	example, err := examples.Find("fleet")
	if err != nil {
		return err
	}
	if err := d.configure(example); err != nil {
		return err
	}
	began := time.Now()
	if _, err := d.tell(ctx, "migrate", "up"); err != nil {
		return err
	}
	d.screen.figure("reconciler migrate up", "schema reconciler, in %s", seconds(time.Since(began)))
	began = time.Now()
	db, err := sql.Open("pgx", d.server.URL(database))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer db.Close()
	if err := example.Up(ctx, db); err != nil {
		return err
	}
	if err := example.Fill(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, odd); err != nil {
		return fmt.Errorf("add the region edge: %w", err)
	}
	var deployments, live int
	if err := d.row(ctx, "SELECT count(*), count(*) FILTER (WHERE EXISTS (SELECT FROM fleet.topologies t WHERE t.deployment_id = d.id AND t.desired_status = 'running')) FROM fleet.deployments d",
		nil, &deployments, &live); err != nil {
		return err
	}
	d.screen.figure("the fleet", "%s live deployments and %s of the past, loaded in %s", count(live), count(deployments-live), seconds(time.Since(began)))
	return nil
}

// edge is the webhook among the targets. Its pauses are short because the demo is.
const edge = `  - name: edge
    driver: webhook
    options: {url: %q}
    backoff: {min: 250ms, max: 4s}
`

// configure writes the example's config, with two targets more, and that of the agent.
func (d *demo) configure(example examples.Example) error {
	dir := filepath.Join(d.server.Dir, "regions")
	text, err := example.Config(d.server.URL(database), dir)
	if err != nil {
		return err
	}
	d.config = filepath.Join(d.server.Dir, "reconciler.yaml")
	text = "listen: off\n" + text + fmt.Sprintf(edge, d.hook.url()) + fmt.Sprintf(farTarget, d.line.to)
	if err := os.WriteFile(d.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the config: %w", err)
	}
	for _, name := range []string{"eu-west", "us-east", "ap-south", farRegion} {
		p := place{name: name, dir: filepath.Join(dir, name)}
		if err := os.MkdirAll(p.dir, 0o700); err != nil {
			return fmt.Errorf("make a directory for target %s: %w", name, err)
		}
		d.places = append(d.places, p)
	}
	return d.configureAgent(d.place(farRegion).dir)
}
