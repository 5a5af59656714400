//go:build long

package faulttest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rareObject is a JSON object, such as a part of a config.
type rareObject = map[string]any

// rareWorld is a database with a fleet of apps, and a directory with configs and the files of targets.
type rareWorld struct {
	t   *testing.T
	db  *pgtest.DB
	dir string
}

// rareFleet is what the worlds track: an app runs in a region, which names its target. Of two states of one row the
// later one has the higher version.
const rareFleet = `
CREATE SEQUENCE versions;
CREATE TABLE apps (
    id bigint PRIMARY KEY, region text NOT NULL, version bigint NOT NULL DEFAULT nextval('versions'), state text NOT NULL DEFAULT 'running');
CREATE INDEX ON apps (region, id) WHERE state = 'running';
SELECT reconciler.track('app', 'apps', '{id}', 'region', running => $$state = 'running'$$, ignore => '{region,state}')`

func newRareWorld(t *testing.T, db *pgtest.DB) *rareWorld {
	t.Helper()
	w := &rareWorld{t: t, db: db, dir: t.TempDir()}
	w.exec(rareFleet)
	return w
}

func (w *rareWorld) path(name string) string { return filepath.Join(w.dir, name) }

// fill adds apps 1 to n, which run in the regions by turns.
func (w *rareWorld) fill(n int, regions ...string) {
	w.t.Helper()
	w.exec(`INSERT INTO apps (id, region) SELECT i, ($2::text[])[1 + i % cardinality($2::text[])] FROM generate_series(1, $1::int) AS i`, n, regions)
}

// rareCallTimeout is short: the sync after a takeover waits for it.
const rareCallTimeout = "2s"

// fileTarget is a target whose files are in the world's directory of the same name. Its guard holds nothing.
func (w *rareWorld) fileTarget(name string, change ...rareObject) rareObject {
	target := rareObject{
		"name": name, "driver": "file", "timeout": rareCallTimeout, "guard": rareObject{"max_fraction": 1}, "options": rareObject{"dir": w.path(name), "fsync": false},
	}
	for _, c := range change {
		maps.Copy(target, c)
	}
	return target
}

// configure writes a config, and returns its path.
func (w *rareWorld) configure(name string, targets []rareObject, change ...rareObject) string {
	w.t.Helper()
	config := rareObject{
		"database_url": w.db.URL, "listen": "127.0.0.1:0", "log": rareObject{"level": "debug", "format": "json"}, "targets": targets,
	}
	for _, c := range change {
		maps.Copy(config, c)
	}
	text, err := json.MarshalIndent(config, "", "  ")
	require.NoError(w.t, err)
	path := w.path(name + ".yaml")
	require.NoError(w.t, os.WriteFile(path, text, 0o600))
	return path
}

// cli runs a command as a daemon would be started, but not elsewhere. It must succeed; cli returns what it printed.
func (w *rareWorld) cli(s rareStart, args ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), 2*rarePatience, errors.New("the command takes too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, append(args, "-c", s.config)...)
	cmd.Dir, cmd.Env = w.dir, append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}, s.env...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(w.t, cmd.Run(), "%v\n%s%s", args, &stdout, &stderr)
	return stdout.String()
}

// wait returns when everything that is committed is applied, says the product.
func (w *rareWorld) wait(s rareStart) {
	w.t.Helper()
	w.cli(s, "wait", "--timeout", rarePatience.String())
}

func (w *rareWorld) exec(sql string, args ...any) {
	w.t.Helper()
	w.db.Exec(w.t, sql, args...)
}

// text runs a query that gives one value; NULL is "".
func (w *rareWorld) text(sql string, args ...any) string {
	w.t.Helper()
	text, err := w.tryText(sql, args...)
	require.NoError(w.t, err, sql)
	return text
}

func (w *rareWorld) tryText(sql string, args ...any) (string, error) {
	var text *string
	err := w.db.Pool.QueryRow(w.t.Context(), "SELECT ("+sql+")::text", args...).Scan(&text)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

// becomes waits until a query gives a value.
func (w *rareWorld) becomes(want, sql string, args ...any) {
	w.t.Helper()
	rareEventually(w.t, rarePatience, func() error {
		have, err := w.tryText(sql, args...)
		if err == nil && have != want {
			err = errors.New("want " + want + ", have " + have)
		}
		return err
	}, sql)
}

// rows reads from the fleet what each target must have: names of files and their content.
func (w *rareWorld) rows() map[string]map[string]string {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), `SELECT region, format('app/%s.json', id), format(E'{"id": %s, "version": %s}\n', id, version) FROM apps WHERE state = 'running'`)
	require.NoError(w.t, err)
	want := map[string]map[string]string{}
	var region, name, content string
	_, err = pgx.ForEachRow(rows, []any{&region, &name, &content}, func() error {
		if want[region] == nil {
			want[region] = map[string]string{}
		}
		want[region][name] = content
		return nil
	})
	require.NoError(w.t, err)
	return want
}

// equal compares what targets have with the rows. have gives the objects of a target.
func (w *rareWorld) equal(have func(target string) map[string]string, targets ...string) {
	w.t.Helper()
	want := w.rows()
	for _, target := range targets {
		require.Empty(w.t, cmp.Diff(want[target], have(target), rareEmptyIsNil), "VIOLATION: target %s: rows (-) and objects (+) differ", target)
	}
}

// rareEmptyIsNil makes cmp take a nil map for an empty one.
var rareEmptyIsNil = cmp.FilterValues(func(a, b map[string]string) bool { return len(a) == 0 && len(b) == 0 }, cmp.Ignore())

// files returns the objects of a file target.
func (w *rareWorld) files(target string) map[string]string {
	w.t.Helper()
	have, err := rareFiles(w.path(target))
	require.NoError(w.t, err)
	return have
}

// rareFiles returns the content of every file in a directory by its path in it, but for those that begin with a dot:
// readers of a target know by it what is still being written.
func rareFiles(dir string) (map[string]string, error) {
	have := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || entry.IsDir() || strings.HasPrefix(entry.Name(), ".") {
			return err
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name, _ := filepath.Rel(dir, path)
		have[filepath.ToSlash(name)] = string(content)
		return err
	})
	return have, err
}

// owners returns which process owns each target, by its number; targets without an owner are left out.
func (w *rareWorld) owners() map[string]string {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), `SELECT t.name, substring(i.name FROM '[0-9]+$') FROM reconciler.targets t JOIN reconciler.instances i ON i.id = t.owner WHERE reconciler.lease_lives(t.owner, t.lease_ttl)`)
	require.NoError(w.t, err)
	owners := map[string]string{}
	var name, process string
	_, err = pgx.ForEachRow(rows, []any{&name, &process}, func() error {
		owners[name] = process
		return nil
	})
	require.NoError(w.t, err)
	return owners
}

// ownedBy waits until these processes, by number, own the targets and nobody owns another one.
func (w *rareWorld) ownedBy(within time.Duration, want map[string]string) (after time.Duration) {
	w.t.Helper()
	return rareEventually(w.t, within, func() error {
		if diff := cmp.Diff(want, w.owners()); diff != "" {
			return fmt.Errorf("owners wanted (-) and found (+):\n%s", diff)
		}
		return nil
	}, "owners")
}

// rareBinary builds the command reconciler, which says that it is of a version, without the race detector.
func rareBinary(t *testing.T, version string) string {
	t.Helper()
	return rareBuild(t, "reconciler-"+version, "-ldflags=-X main.version="+version)
}

// rareRun runs a program of the system to its end.
func rareRun(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := rareTry(t, name, args...)
	require.NoError(t, err)
	return out
}

func rareTry(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	// Debian keeps some of them where not everybody looks.
	for _, dir := range []string{"/usr/sbin/", "/sbin/"} {
		if _, err := exec.LookPath(name); err != nil {
			if _, err := os.Stat(dir + name); err == nil {
				name = dir + name
			}
		}
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(t.Context()), rarePatience, errors.New(name+" takes too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %q: %w\n%s%s", name, args, err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

const (
	// rarePatience is how long a test waits for what must happen on a busy machine.
	rarePatience = 40 * time.Second
	// rareGlance is the pause between two looks at what tells nobody that it has changed.
	rareGlance = 20 * time.Millisecond
	// rareTakeover is how long a target may rest after its owner was killed or cut off, on a busy machine.
	rareTakeover = 19 * time.Second
)

// rareEventually looks until there is nothing wrong any more, and returns how long that took.
func rareEventually(t *testing.T, within time.Duration, wrong func() error, what string) time.Duration {
	t.Helper()
	began := time.Now()
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	ticker := time.NewTicker(rareGlance)
	defer ticker.Stop()
	for {
		err := wrong()
		if err == nil {
			return time.Since(began)
		}
		select {
		case <-ticker.C:
		case <-timeout.C:
			require.NoError(t, err, "not within %s: %s", within, what)
		}
	}
}
