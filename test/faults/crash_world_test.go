package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// crashPatience is how long a test waits for what must happen on a busy machine.
const crashPatience = pgtest.Patience

type crashObject = map[string]any

// crashWorld is a database with a plain and a joined resource, and two targets: files, whose reload command shows what
// it was run for, and an endpoint that cannot list.
type crashWorld struct {
	t        *testing.T
	db       *pgtest.DB
	dir      string
	endpoint *crashEndpoint
}

func newCrashWorld(t *testing.T, db *pgtest.DB) *crashWorld {
	t.Helper()
	w := &crashWorld{t: t, db: db, dir: t.TempDir(), endpoint: newCrashEndpoint(t)}
	w.configure("3s")
	return w
}

// configure writes the config. A call takes at most so long.
func (w *crashWorld) configure(timeout string) {
	w.t.Helper()
	// The command shows what the files were when it ran.
	reload := `cat eu/*/[!.]* 2>/dev/null | sort > loaded.new; mv loaded.new loaded`
	config := crashObject{
		"database_url": w.db.URL, "listen": "127.0.0.1:0", "log": crashObject{"level": "debug", "format": "json"},
		"targets": []crashObject{
			{
				"name": "eu", "driver": "file", "timeout": timeout, "guard": crashObject{"max_fraction": 1},
				"options": crashObject{
					"dir": w.path("eu"), "fsync": false,
					"reload": crashObject{"command": []string{"sh", "-c", reload}, "dir": w.dir, "debounce": "50ms"},
				},
			},
			{
				"name": "us", "driver": "webhook", "timeout": timeout, "concurrency": 16, "guard": crashObject{"max_fraction": 1},
				"options": crashObject{"url": w.endpoint.url},
			},
		},
	}
	text, err := json.MarshalIndent(config, "", "  ")
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.path("reconciler.yaml"), text, 0o600))
}

func (w *crashWorld) path(name string) string { return filepath.Join(w.dir, name) }

func (w *crashWorld) exec(sql string) {
	w.t.Helper()
	w.db.Exec(w.t, sql)
}

// track makes tables and has them tracked.
func (w *crashWorld) track() {
	w.t.Helper()
	w.exec(`
CREATE TABLE apps (id bigint PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'running');
CREATE INDEX ON apps (region, id) WHERE state = 'running';
CREATE TABLE teams (name text PRIMARY KEY, region text NOT NULL);
CREATE TABLE members (id int PRIMARY KEY, team text NOT NULL REFERENCES teams);
CREATE VIEW people AS SELECT m.id, t.name AS team, t.region FROM members m JOIN teams t ON t.name = m.team;
SELECT reconciler.track('app', 'apps', '{id}', 'region', running => $$state = 'running'$$, ignore => '{region,state}');
SELECT reconciler.track('person', 'people', '{id}', 'region', depends_on => '{"members": {"id": "id"}, "teams": {"name": "team"}}')`)
}

// fill writes rows of both resources for both targets.
func (w *crashWorld) fill() {
	w.t.Helper()
	w.exec(`INSERT INTO apps (id, region) SELECT i, (array['eu', 'us'])[1 + i % 2] FROM generate_series(1, 40) AS i;
INSERT INTO teams VALUES ('red', 'eu'), ('blue', 'us'); INSERT INTO members SELECT i, (array['red', 'blue'])[1 + i % 2] FROM generate_series(1, 6) AS i`)
}

// change is what happens to the rows while no process runs: changes, moves and deletes, of all that came before.
func (w *crashWorld) change() {
	w.t.Helper()
	w.exec(`UPDATE apps SET version = version + 1 WHERE id % 3 = 0`)
	w.exec(`DELETE FROM apps WHERE id % 5 = 0`)
	w.exec(`UPDATE apps SET region = CASE region WHEN 'eu' THEN 'us' ELSE 'eu' END WHERE id % 7 = 0`)
	w.exec(`UPDATE apps SET state = 'off' WHERE id % 11 = 0`)
	w.exec(`INSERT INTO apps (id, region) VALUES (10001, 'eu'), (10002, 'us')`)
	w.exec(`UPDATE teams SET region = 'us' WHERE name = 'red'`)
	w.exec(`DELETE FROM members WHERE id = 2`)
}

// want reads from the rows what the targets must have: target, resource and key, spec.
func (w *crashWorld) want() map[string]map[string]string {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(), `SELECT region, 'app/' || id, format('{"id": %s, "version": %s}', id, version) FROM apps WHERE state = 'running'
UNION ALL SELECT region, 'person/' || id, format('{"id": %s, "team": "%s", "region": "%s"}', id, team, region) FROM people`)
	require.NoError(w.t, err)
	want := map[string]map[string]string{"eu": {}, "us": {}}
	var region, name, spec string
	_, err = pgx.ForEachRow(rows, []any{&region, &name, &spec}, func() error {
		want[region][name] = spec
		return nil
	})
	require.NoError(w.t, err)
	return want
}

// files returns what the file target has. What a killed process was still writing has a dot before its name.
func (w *crashWorld) files() map[string]string {
	w.t.Helper()
	have := map[string]string{}
	names, err := filepath.Glob(w.path("eu/*/*.json"))
	require.NoError(w.t, err)
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(w.t, err)
		short, _ := filepath.Rel(w.path("eu"), name)
		have[strings.TrimSuffix(short, ".json")] = strings.TrimSuffix(string(text), "\n")
	}
	return have
}

// text runs a query that gives one value.
func (w *crashWorld) text(sql string) string {
	w.t.Helper()
	var text string
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), "SELECT ("+sql+")::text").Scan(&text), sql)
	return text
}

// eventually looks until there is nothing wrong any more.
func (w *crashWorld) eventually(what string, wrong func() error) {
	w.t.Helper()
	require.NoError(w.t, pgtest.Poll(context.Background(), crashPatience, wrong), what)
}

// cli runs a command to its end; it must succeed.
func (w *crashWorld) cli(args ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeoutCause(w.t.Context(), 2*crashPatience, errors.New("the command takes too long"))
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, append(args, "-c", w.path("reconciler.yaml"))...)
	cmd.Env = w.environ()
	said, err := cmd.CombinedOutput()
	require.NoError(w.t, err, "%v: %s", args, said)
}

func (w *crashWorld) wait() {
	w.t.Helper()
	w.cli("wait", "--timeout", crashPatience.String())
}

func (w *crashWorld) environ() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}
}

// crashProcess is a running command.
type crashProcess struct {
	w      *crashWorld
	cmd    *exec.Cmd
	log    string // path of the file with all it says
	exited chan struct{}
}

// start runs a command that dies at a visit of a point, or nowhere when that is empty. It is killed at the end of the test.
func (w *crashWorld) start(at crash.Name, visit int, args ...string) *crashProcess {
	w.t.Helper()
	file, err := os.CreateTemp(w.dir, "log-")
	require.NoError(w.t, err)
	defer file.Close()
	p := &crashProcess{w: w, log: file.Name(), exited: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(w.t.Context()), binary, append(args, "-c", w.path("reconciler.yaml"))...)
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = w.environ(), w.dir, file, file
	if at != "" {
		p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("RECONCILER_CRASH=%s:kill:%d", at, visit), "RECONCILER_CRASH_LOG="+w.path("crashed"))
	}
	require.NoError(w.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // ProcessState tells how it ended
		close(p.exited)
	}()
	w.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if text, err := os.ReadFile(p.log); w.t.Failed() && err == nil {
			w.t.Logf("process %d, to die at %q:\n%s", p.cmd.Process.Pid, at, text)
		}
	})
	return p
}

// synced waits until both targets had their first sync, and the leader has its cursor.
func (p *crashProcess) synced() *crashProcess {
	p.w.t.Helper()
	p.w.eventually("a sync of both targets", func() error {
		select {
		case <-p.exited:
			require.FailNow(p.w.t, "the process has ended too early")
		default:
		}
		text, err := os.ReadFile(p.log)
		if n := bytes.Count(text, []byte(`"msg":"sync_complete"`)); err == nil && n < 2 {
			err = fmt.Errorf("%d are complete", n)
		}
		return err
	})
	// Without its cursor the leader would not expand the changes that come now, but ask for syncs.
	p.w.eventually("the leader's cursor", func() error {
		if p.w.text(`SELECT count(revision) FROM reconciler.cursor_of(0)`) == "0" {
			return errors.New("the leader has no cursor")
		}
		return nil
	})
	return p
}

// ended waits for the process, and returns how it ended.
func (p *crashProcess) ended() syscall.WaitStatus {
	p.w.t.Helper()
	timeout := time.NewTimer(crashPatience)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		require.FailNow(p.w.t, "the process does not end")
	}
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (p *crashProcess) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// stop ends the process as service managers do; it must end well.
func (p *crashProcess) stop() {
	p.w.t.Helper()
	p.signal(syscall.SIGTERM)
	require.Equal(p.w.t, syscall.WaitStatus(0), p.ended())
}

// expire ends the leases of a process that is dead, and its share of the targets: the next one need not wait for that.
func (w *crashWorld) expire() {
	w.t.Helper()
	w.exec(`UPDATE reconciler.targets SET owner = NULL, clean = false WHERE owner IS NOT NULL;
UPDATE reconciler.leases SET owner = NULL WHERE owner IS NOT NULL; DELETE FROM reconciler.instances`)
}
