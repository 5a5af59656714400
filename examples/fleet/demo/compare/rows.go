package compare

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// Wanted is what each target is to have: by target, then by the object's path, such as topology/101.json.
type Wanted map[string]map[string]Object

// Object is the content that a path is to have, as encoding/json decodes it with UseNumber.
type Object map[string]any

// The conditions stand here as a person would say them: it runs, its region is on, its workspace is not suspended.
const topologiesSQL = `
SELECT t.region, t.id, w.slug, a.slug, e.slug, d.image, d.command, e.variables::text, d.env::text, t.replicas, d.cpu, d.memory
FROM fleet.topologies AS t, fleet.deployments AS d, fleet.environments AS e, fleet.apps AS a, fleet.workspaces AS w
WHERE d.id = t.deployment_id AND e.id = d.environment_id AND a.id = e.app_id AND w.id = a.workspace_id
  AND t.desired_status = 'running' AND w.suspended = false
  AND t.region IN (SELECT code FROM fleet.regions WHERE active)`

const policiesSQL = `SELECT region, name, workspace_id, direction, action, cidr::text, port FROM fleet.network_policies`

// Read reads what the rows want, as of one moment. Rows that name no target are for all of these targets; rows that
// name another one are in the result too.
func Read(ctx context.Context, conn *pgx.Conn, targets []string) (Wanted, error) {
	wanted := Wanted{}
	for _, target := range targets {
		wanted[target] = map[string]Object{}
	}
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := wanted.readTopologies(ctx, tx); err != nil {
			return fmt.Errorf("read what is to run: %w", err)
		}
		if err := wanted.readPolicies(ctx, tx, targets); err != nil {
			return fmt.Errorf("read the network policies: %w", err)
		}
		return nil
	})
	return wanted, err
}

// Rows is the number of objects in all targets.
func (w Wanted) Rows() int {
	n := 0
	for _, objects := range w {
		n += len(objects)
	}
	return n
}

// Path is the path of an object's file below its target's directory.
func Path(resource, key string) string { return encode(resource) + "/" + encode(key) + ".json" }

func (w Wanted) add(target, resource, key string, o Object) {
	if w[target] == nil {
		w[target] = map[string]Object{}
	}
	w[target][Path(resource, key)] = o
}

func (w Wanted) readTopologies(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, topologiesSQL)
	if err != nil {
		return err
	}
	var (
		region, workspace, app, environment, image string
		id                                         int64
		command                                    []string
		variables, env                             map[string]any
		replicas, cpu, memory                      int32
		variablesText, envText                     string
	)
	into := []any{&region, &id, &workspace, &app, &environment, &image, &command, &variablesText, &envText, &replicas, &cpu, &memory}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if variables, err = object(variablesText); err != nil {
			return err
		}
		if env, err = object(envText); err != nil {
			return err
		}
		maps.Copy(variables, env) // what the deployment says wins
		arguments := make([]any, len(command))
		for i, argument := range command {
			arguments[i] = argument
		}
		w.add(region, "topology", strconv.FormatInt(id, 10), Object{
			"workspace": workspace, "app": app, "environment": environment, "image": image, "command": arguments, "env": variables,
			"replicas":  number(int64(replicas)),
			"resources": map[string]any{"cpu": fmt.Sprintf("%dm", cpu), "memory": fmt.Sprintf("%dMi", memory)},
		})
		return nil
	})
	return err
}

func (w Wanted) readPolicies(ctx context.Context, tx pgx.Tx, targets []string) error {
	rows, err := tx.Query(ctx, policiesSQL)
	if err != nil {
		return err
	}
	var (
		region                        *string
		name, direction, action, cidr string
		workspace                     int64
		port                          *int32
	)
	_, err = pgx.ForEachRow(rows, []any{&region, &name, &workspace, &direction, &action, &cidr, &port}, func() error {
		o := Object{"region": nil, "name": name, "workspace_id": number(workspace), "direction": direction, "action": action, "cidr": cidr, "port": nil}
		if port != nil {
			o["port"] = number(int64(*port))
		}
		places := targets
		if region != nil {
			o["region"], places = *region, []string{*region}
		}
		for _, target := range places {
			w.add(target, "network_policy", name, o)
		}
		return nil
	})
	return err
}

func number(n int64) json.Number { return json.Number(strconv.FormatInt(n, 10)) }

func object(text string) (map[string]any, error) {
	value, err := decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", text, err)
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", text)
	}
	return fields, nil
}
