package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	// patience is how long a test waits for what must happen on a busy machine; nothing is slept through.
	patience = pgtest.Patience
	// takeover is how long a crashed process's targets may rest; see docs/guarantees.md.
	takeover = 10 * time.Second
)

// bound is d in the long tier, which has the machine for itself. Otherwise a test waits longer.
func bound(d time.Duration) time.Duration {
	if pgtest.Long {
		return d
	}
	return patience
}

// object is a JSON object, such as a part of a config.
type object = map[string]any

// world is a database, and a directory with a config and the targets' files.
type world struct {
	t      testing.TB
	db     *pgtest.DB
	dir    string
	config string   // path of the config file
	env    []string // of every process, beside PATH
	binary string   // that is run
}

// newWorld returns a world with a database that has every migration.
func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, pgtest.New(t))
}

// newGiantWorld is for a transaction that is open for long. Every database of a server sees it: the tests of others, in which
// a leader goes to sleep, or a replication slot is made, would wait for its end.
func newGiantWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, pgtest.Holding(t))
}

func newWorldOn(t testing.TB, db *pgtest.DB) *world {
	t.Helper()
	dir := t.TempDir()
	return &world{t: t, db: db, dir: dir, config: filepath.Join(dir, "reconciler.yaml"), binary: binary}
}

// fileTarget is a target of the config whose files are in the world's directory of the same name. Its guard holds
// nothing, so that tests may delete as much as they like.
func (w *world) fileTarget(name string, change ...object) object {
	target := object{"name": name, "driver": "file", "options": object{"dir": w.path(name)}, "guard": object{"max_fraction": 1}}
	for _, c := range change {
		maps.Copy(target, c)
	}
	return target
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// configure writes the config: an object is a document in JSON, which is YAML too.
func (w *world) configure(targets []object, change ...object) {
	w.t.Helper()
	w.configureFile(w.config, targets, change...)
}

func (w *world) configureFile(path string, targets []object, change ...object) {
	w.t.Helper()
	config := object{
		"database_url": w.db.URL, "listen": "127.0.0.1:0", "log": object{"level": "debug", "format": "json"}, "targets": targets,
	}
	for _, c := range change {
		maps.Copy(config, c)
	}
	text, err := json.MarshalIndent(config, "", "  ")
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(path, text, 0o600))
}

// result is what came of a command.
type result struct {
	code           int
	stdout, stderr string
}

// cli runs a command with the world's config to its end.
func (w *world) cli(args ...string) result {
	w.t.Helper()
	return w.cliWith(w.config, args...)
}

func (w *world) cliWith(config string, args ...string) result {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), 2*patience, errors.New("the command takes too long"))
	defer cancel()
	cmd := w.command(ctx, append(args, "-c", config)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	require.NoError(w.t, ctx.Err(), "%v: %v", args, context.Cause(ctx))
	if _, ended := errors.AsType[*exec.ExitError](err); !ended {
		require.NoError(w.t, err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok is cli for a command that must succeed; it returns what the command printed.
func (w *world) ok(args ...string) string {
	w.t.Helper()
	r := w.cli(args...)
	require.Equal(w.t, 0, r.code, "%v\n%s%s", args, r.stdout, r.stderr)
	return r.stdout
}

// json is cli with -o json; it parses the result, which must be all that stands on standard output.
func (w *world) json(into any, args ...string) result {
	w.t.Helper()
	return w.jsonWith(w.config, into, args...)
}

func (w *world) jsonWith(config string, into any, args ...string) result {
	w.t.Helper()
	r := w.cliWith(config, append(slices.Clone(args), "-o", "json")...)
	require.NoError(w.t, json.Unmarshal([]byte(r.stdout), into), "%v: %d\n%s%s", args, r.code, r.stdout, r.stderr)
	return r
}

func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.binary, args...)
	cmd.Dir = w.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}, w.env...)
	return cmd
}

// wait returns when everything that is committed is applied.
func (w *world) wait(args ...string) {
	w.t.Helper()
	w.ok(append([]string{"wait", "--timeout", patience.String()}, args...)...)
}

// exec runs SQL as superuser.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	w.db.Exec(w.t, sql, args...)
}

// text runs a query that gives one value.
func (w *world) text(sql string, args ...any) string {
	w.t.Helper()
	text, err := w.tryText(sql, args...)
	require.NoError(w.t, err, sql)
	return text
}

func (w *world) tryText(sql string, args ...any) (string, error) {
	var text *string
	err := w.db.Pool.QueryRow(w.t.Context(), "SELECT ("+sql+")::text", args...).Scan(&text)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

// becomes waits until a query gives a value.
func (w *world) becomes(want, sql string, args ...any) {
	w.t.Helper()
	eventually(w.t, patience, func() error {
		have, err := w.tryText(sql, args...)
		if err == nil && have != want {
			err = errors.New("want " + want + ", have " + have)
		}
		return err
	}, sql)
}

// column runs a query for one column.
func (w *world) column(sql string, args ...any) []string {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), sql, args...)
	require.NoError(w.t, err, sql)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(w.t, err, sql)
	return values
}

// eventually looks until there is nothing wrong any more.
func eventually(t testing.TB, within time.Duration, wrong func() error, what string) {
	t.Helper()
	require.NoError(t, pgtest.Poll(t.Context(), within, wrong), "not within %s: %s", within, what)
}

// statusRow is a target in `reconciler status -o json`, as far as tests look at it.
type statusRow struct {
	Target  string `json:"target"`
	State   string `json:"state"`
	Driver  string `json:"driver"`
	Owner   string `json:"owner"`
	Objects int    `json:"objects"`
	Applied int    `json:"applied"`
	Pending int    `json:"pending"`
	Failing int    `json:"failing"`
	Blocked int    `json:"blocked"`
	Held    int    `json:"held"`
	Lag     *int   `json:"lag"`
}

func (w *world) status() map[string]statusRow {
	w.t.Helper()
	var rows []statusRow
	require.Equal(w.t, 0, w.json(&rows, "status").code)
	byName := map[string]statusRow{}
	for _, row := range rows {
		byName[row.Target] = row
	}
	return byName
}
