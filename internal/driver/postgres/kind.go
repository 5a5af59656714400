package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
	"github.com/pgreconciler/reconciler/internal/redact"
)

const (
	tableDefault          = "reconciled_objects"
	maxConnectionsDefault = 4
	maxConnectionsMax     = 100
	connectTimeoutDefault = 5 * time.Second // unless the URL has connect_timeout
	// nameBytesMax is PostgreSQL's; it cuts longer names, and two could become one.
	nameBytesMax = 63
)

// Kind is the driver `postgres`.
func Kind() driver.Kind { return driver.Kind{Name: "postgres", Open: open} }

func open(target string, opts driver.Options, env driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	secret := r.RequiredSecret("url", env.Getenv)
	table := readTable(r)
	d := &database{target: target, sql: table.statements(), create: r.Bool("create", false)}
	connections := r.Int("max_connections", maxConnectionsDefault, 1, maxConnectionsMax)
	config, err := parseURL(secret.Value)
	if secret.Value != "" && err != nil {
		option := "url_env"
		if r.Has("url_file") {
			option = "url_file"
		}
		r.Problemf(option, "%s", err)
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	config.MaxConns = int32(connections)
	d.place = driver.Place{
		Option: "table", Detail: target, // each row has the name of its target
		Name: fmt.Sprintf("table %s of database %s at %s", table.name, config.ConnConfig.Database, net.JoinHostPort(config.ConnConfig.Host, strconv.Itoa(int(config.ConnConfig.Port)))),
	}
	// Neither prepared statements nor anything else is kept in a session, so that a pooler may stand in between.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeoutDefault
	}
	if _, given := config.ConnConfig.RuntimeParams["application_name"]; !given {
		config.ConnConfig.RuntimeParams["application_name"] = "reconciler"
	}
	d.scrubber = driver.NewScrubber(map[string]string{
		secret.Value: secret.Label, config.ConnConfig.Password: secret.Label,
	})
	// It connects when it is used: a target that is down is no mistake in the config.
	d.pool, err = pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, driver.Problems{{Path: "options", Text: d.scrubber.Text(err.Error())}}
	}
	return d, nil
}

// parseURL does not return the parser's own text, which repeats parts of the URL.
func parseURL(raw string) (*pgxpool.Config, error) {
	if err := redact.CheckDatabase(raw); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(raw)
	if err != nil {
		return nil, errors.New("must hold a connection URL such as postgres://user:password@host:5432/database")
	}
	return config, nil
}

func readTable(r *options.Reader) table {
	t := table{columns: map[string]string{}}
	parts := strings.Split(r.String("table", tableDefault), ".")
	if len(parts) > 2 {
		r.Problemf("table", "must be a table, or a schema and a table with a dot between")
	}
	for _, part := range parts {
		checkName(r, "table", part)
	}
	t.name = pgx.Identifier(parts).Sanitize()

	given := r.StringMap("columns")
	for _, column := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(columns, column) {
			r.Problemf("columns."+column, "unknown column; known are %s", strings.Join(columns, ", "))
		}
	}
	taken := map[string]string{}
	for _, column := range columns {
		name := column
		if own, ok := given[column]; ok {
			name = own
			checkName(r, "columns."+column, own)
		}
		if other, ok := taken[name]; ok {
			r.Problemf("columns", "%s and %s have one column", other, column)
		}
		taken[name] = column
		t.columns[column] = pgx.Identifier{name}.Sanitize()
	}
	return t
}

func checkName(r *options.Reader, option, name string) {
	switch {
	case name == "":
		r.Problemf(option, "holds an empty name")
	case strings.ContainsRune(name, 0):
		r.Problemf(option, "holds a NUL character")
	case len(name) > nameBytesMax:
		r.Problemf(option, "holds a name of more than %d bytes", nameBytesMax)
	}
}
