package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// place is a directory that commands are called in, with an environment of its own.
type place struct {
	dir     string
	environ []string
}

// result is what came of a command.
type result struct {
	code           int
	stdout, stderr string
}

// newPlace returns an empty directory.
func newPlace(t *testing.T, environ ...string) *place {
	t.Helper()
	return &place{dir: t.TempDir(), environ: environ}
}

// write puts a file into the place.
func (p *place) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(p.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// run calls the command line as main does. Texts that name the directory name /etc/reconciler instead.
func (p *place) run(t *testing.T, args ...string) result {
	t.Helper()
	return p.runContext(t.Context(), args...)
}

func (p *place) runContext(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, environ: p.environ, dir: p.dir, registry: registry()}
	code := a.execute(ctx, args)
	return result{code, p.hide(stdout.String()), p.hide(stderr.String())}
}

func (p *place) hide(text string) string { return strings.ReplaceAll(text, p.dir, "/etc/reconciler") }

// world is a database as a person finds it, and a place with a config for it: the resource deployments over
// public.deployments, a process host-1 that owns the targets eu, us and ap, everything up to revision 10 recorded.
//
//	eu  1 and 2 applied, 3 failing, 4 blocked
//	us  5 applied; paused
//	ap  6 applied, the deletes of 7, 8 and 9 held by the guard
type world struct {
	*place

	db *pgtest.DB
}

const worldSchema = `
CREATE TABLE public.deployments (id bigint PRIMARY KEY, region text, running boolean NOT NULL DEFAULT true, image text NOT NULL DEFAULT 'app:1');
CREATE INDEX ON public.deployments (region, id) WHERE running;
INSERT INTO public.deployments (id, region) VALUES (1, 'eu'), (2, 'eu'), (3, 'eu'), (4, 'eu'), (5, 'us'), (6, 'ap');
SELECT reconciler.track('deployments', 'public.deployments', '{id}', 'region', 'running');`

const worldState = `
INSERT INTO reconciler.instances (id, name, version, targets) VALUES ('00000000-0000-0000-0000-000000000001', 'host-1', 'v1', '{ap,eu,us}');
INSERT INTO reconciler.heartbeats (instance, beat) VALUES ('00000000-0000-0000-0000-000000000001', 1);
INSERT INTO reconciler.ticks (revision, snapshot, at) VALUES (10, pg_current_snapshot(), '2026-01-02 03:04:10+00');
UPDATE reconciler.leases SET owner = '00000000-0000-0000-0000-000000000001', term = 1, lease_ttl = '1 hour';
INSERT INTO reconciler.targets (name, configured, driver, owner, term, lease_ttl)
SELECT n, true, 'file', '00000000-0000-0000-0000-000000000001', 1, '1 hour' FROM unnest('{eu,us,ap}'::text[]) AS n;
INSERT INTO reconciler.cursors (consumer, revision, snapshot)
SELECT c.id, k.revision, k.snapshot FROM (SELECT 0 AS id UNION ALL SELECT id FROM reconciler.targets) AS c, reconciler.ticks k;
INSERT INTO reconciler.sync_runs (target_id, reason, state, requested_at, started_at, finished_at, rows)
SELECT id, 'start', 'complete', '2026-01-02 03:04:00+00', '2026-01-02 03:04:00+00', '2026-01-02 03:04:05+00', 4 FROM reconciler.targets;
INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash, applied_at)
SELECT t.id, r.id, d.key, 'applied', true, true, 9, 9, substr(sha256(convert_to(d.spec::text, 'UTF8')), 1, 16), '2026-01-02 03:04:09+00'
FROM reconciler.desired_deployments d JOIN reconciler.targets t ON t.name = d.target, reconciler.resources r;
INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, desired_revision, applied_revision, applied_hash, applied_at, held_by)
SELECT t.id, r.id, k, 'held', false, true, 10, 9, '\x00112233445566778899aabbccddeeff', '2026-01-02 03:04:09+00', 'guard'
FROM reconciler.targets t, reconciler.resources r, unnest('{7,8,9}'::text[]) AS k WHERE t.name = 'ap';
UPDATE reconciler.targets SET guard_since = '2026-01-02 03:04:10+00', guard_deletes = 3, guard_objects = 4 WHERE name = 'ap';
UPDATE reconciler.targets SET paused_at = '2026-01-02 03:04:10+00', paused_by = 'alice', paused_reason = 'maintenance' WHERE name = 'us';
UPDATE reconciler.ledger SET state = 'failing', attempts = 3, last_error = 'HTTP 503 Service Unavailable', next_attempt_at = '2126-01-02 03:04:05+00',
    desired_revision = 10 WHERE key = '3';
UPDATE reconciler.ledger SET state = 'blocked', attempts = 1, last_error = 'image must have a tag', desired_revision = 10,
    failed_hash = substr(sha256(convert_to((SELECT spec FROM reconciler.desired_deployments WHERE key = '4')::text, 'UTF8')), 1, 16) WHERE key = '4';`

// newWorld makes a world. Its targets are directories in the place that have what the ledger says.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldIn(t, pgtest.New(t))
}

// newWorldIn makes a world in a database.
func newWorldIn(t *testing.T, db *pgtest.DB) *world {
	t.Helper()
	w := &world{place: newPlace(t), db: db}
	w.db.Exec(t, worldSchema)
	w.db.Exec(t, "DELETE FROM reconciler.outbox")
	w.db.Exec(t, worldState)
	w.config(t, w.db.URL)
	for _, target := range []string{"eu", "us", "ap"} {
		require.NoError(t, os.Mkdir(filepath.Join(w.dir, target), 0o700))
		w.fill(t, target)
	}
	return w
}

// config writes reconciler.yaml.
func (w *world) config(t *testing.T, url string) {
	t.Helper()
	text := fmt.Sprintf("database_url: %q\nlisten: 127.0.0.1:0\ntargets:\n", url)
	for _, target := range []string{"eu", "us", "ap"} {
		text += fmt.Sprintf("  - {name: %s, driver: file, options: {dir: %q}}\n", target, filepath.Join(w.dir, target))
	}
	w.write(t, "reconciler.yaml", text)
}

// open returns the driver of a target.
func (w *world) open(t *testing.T, target string) driver.Driver {
	t.Helper()
	kind, ok := registry().Lookup("file")
	require.True(t, ok)
	drv, err := kind.Open(target, driver.Options{"dir": filepath.Join(w.dir, target)}, driver.Env{Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, drv.Close(context.WithoutCancel(t.Context()))) })
	return drv
}

// fill applies to a target what its rows ask for, and objects 7 to 9 to ap.
func (w *world) fill(t *testing.T, target string) {
	t.Helper()
	drv := w.open(t, target)
	rows, err := w.db.Pool.Query(t.Context(), "SELECT key, spec::text FROM reconciler.desired_deployments WHERE target = $1", target)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var key, spec string
		require.NoError(t, rows.Scan(&key, &spec))
		w.apply(t, drv, target, key, spec)
	}
	require.NoError(t, rows.Err())
	if target == "ap" {
		for _, key := range []string{"7", "8", "9"} {
			w.apply(t, drv, target, key, `{"id": 0}`)
		}
	}
}

func (w *world) apply(t *testing.T, drv driver.Driver, target, key, spec string) {
	t.Helper()
	out := drv.Apply(t.Context(), driver.Object{
		Ref: driver.Ref{Target: target, Resource: "deployments", Key: key}, Spec: json.RawMessage(spec), Hash: driver.HashSpec([]byte(spec)),
	})
	require.Equal(t, driver.Done(), out)
}

// value runs a query that gives one text.
func (w *world) value(t *testing.T, sql string, args ...any) string {
	t.Helper()
	var text string
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&text), sql)
	return text
}

func removeFile(dir, name string) error { return os.Remove(filepath.Join(dir, name)) }

// golden compares a text with testdata/name.txt; -update writes it.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), text)
}

// withPassword puts a password into a URL of a server that asks for none.
func withPassword(url string) string {
	return strings.Replace(url, "postgres@", "postgres:hunter2@", 1)
}
