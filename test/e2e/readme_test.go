package e2e_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

var codeBlock = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// readme has what the test needs to follow README.md.
type readme struct {
	t       *testing.T
	blocks  [][]string // language and text
	printed *logbook
	psql    string // command
	dir     string // of the files of targets
}

// Every block of README.md runs as it is printed, in order, and its comments are true.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	r := &readme{t: t}
	for _, match := range codeBlock.FindAllStringSubmatch(string(text), -1) {
		r.blocks = append(r.blocks, match[1:])
	}

	installed := strings.TrimSpace(string(r.output("go", "list", "../../cmd/reconciler")))
	require.Equal(t, "go install "+installed+"@latest\n", r.block("sh"))
	for line := range strings.Lines(r.block("sh")) { // scripts/bare_test.go runs them
		command, _ := statement(line)
		r.output("sh", "-c", "cd ../.. && "+strings.Replace(command, "make", "make --dry-run", 1))
	}
	require.Equal(t, "reconciler dev\n", r.block("sh"))
	r.dev()
	r.tour(r.block("sql"))
	r.streams(r.block("sh"))
	r.own(r.block("sh"))
	require.Empty(t, r.blocks)
}

// block returns the text of the next block.
func (r *readme) block(language string) string {
	r.t.Helper()
	require.NotEmpty(r.t, r.blocks)
	next := r.blocks[0]
	r.blocks = r.blocks[1:]
	require.Equal(r.t, language, next[0], next[1])
	return next[1]
}

// statement returns a line without its comment, and the comment.
func statement(line string) (text, comment string) {
	for _, sign := range []string{"  -- ", "  # "} {
		if text, comment, ok := strings.Cut(line, sign); ok {
			return strings.TrimSpace(text), strings.TrimSpace(comment)
		}
	}
	return strings.TrimSpace(line), ""
}

// path has the binary that the tests build.
func path() string {
	return "PATH=" + filepath.Dir(binary) + string(os.PathListSeparator) + os.Getenv("PATH")
}

func (r *readme) output(name string, args ...string) []byte {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), name, args...)
	cmd.Env = append(os.Environ(), path())
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "%s %q:\n%s", name, args, out)
	return out
}

// start begins to run a script, which is ended at the end of the test, and returns what it prints.
func (r *readme) start(dir, script string, env ...string) *logbook {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	cmd := exec.CommandContext(ctx, "bash", "-euc", script)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), path()), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = patience
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	require.NoError(r.t, cmd.Start())
	said := newLogbook()
	go said.read(read)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // a signal ends it
		_ = write.Close()
	}()
	r.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return said
}

// dev runs `reconciler dev`.
func (r *readme) dev() {
	r.printed = r.start(r.t.TempDir(), "exec reconciler dev")
	said := r.printed.await(r.t, `(?s)\n  (PGPASSFILE=[^\n]+)\n.*Files of the targets: +(\S+)\n.*Ctrl-C ends it`)
	r.psql, r.dir = said[1], said[2]
}

// query returns what psql prints for a statement.
func (r *readme) query(sql string) string {
	r.t.Helper()
	sql = strings.Replace(sql, "wait('10s')", fmt.Sprintf("wait('%s')", patience), 1)
	cmd := exec.CommandContext(r.t.Context(), "sh", "-c", r.psql+` -AtqX -v ON_ERROR_STOP=1 -c "$STATEMENT"`)
	cmd.Env = append(os.Environ(), "STATEMENT="+sql)
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "%s\n%s", sql, out)
	return strings.TrimSuffix(string(out), "\n")
}

// eventually waits until a statement returns a text.
func (r *readme) eventually(want, sql string) {
	r.t.Helper()
	eventually(r.t, patience, func() error {
		if have := r.query(sql); have != want {
			return fmt.Errorf("%s: %s", sql, have)
		}
		return nil
	}, sql)
}

// file returns the content of a file, "" where there is none.
func file(name string) string {
	text, _ := os.ReadFile(name)
	return string(text)
}

// fileHas waits until a file contains a text.
func (r *readme) fileHas(name, text string) {
	r.t.Helper()
	eventually(r.t, patience, func() error {
		if have := file(name); !strings.Contains(have, text) {
			return fmt.Errorf("%s is %q", name, have)
		}
		return nil
	}, name)
}

// tour types the statements, and holds what comes out against the comment of each.
func (r *readme) tour(sql string) {
	var out string
	comments := map[string]func(){
		"targets/eu/app/1.json and targets/us/app/2.json are there": func() {
			r.fileHas(filepath.Join(r.dir, "targets/eu/app/1.json"), "web:1")
			r.fileHas(filepath.Join(r.dir, "targets/us/app/2.json"), "web:1")
		},
		"deleted in eu, applied in us": func() {
			r.printed.await(r.t, `eu  app/1  deleted`)
			r.printed.await(r.t, `us  app/1  applied`)
			require.Empty(r.t, file(filepath.Join(r.dir, "targets/eu/app/1.json")))
		},
		"deleted in us": func() { r.printed.await(r.t, `us  app/2  deleted`) },
		"one row for each target": func() {
			require.ElementsMatch(r.t, [][]string{{"edge|"}, {"eu|"}, {"us|"}}, regexp.MustCompile(`(?m)^\w+\|`).FindAllStringSubmatch(out, -1))
		},
		"obeyed within a second": func() { r.eventually("paused", "SELECT state FROM reconciler.status WHERE target = 'us'") },
		"held":                   func() { r.eventually("held", "SELECT state FROM reconciler.objects WHERE target = 'us'") },
		"what is not as wanted, and why": func() {
			require.Regexp(r.t, `^us\|app\|1\|held\|.*\|pause\|`, out)
		},
		"row, outbox, ledger, target, what comes next": func() {
			require.Regexp(r.t, `(?s)^Row: .*\nOutbox: .*\nLedger: .*\nTarget: .*\nNext: .*resume\('us'\)`, out)
		},
		"applied in us": func() { r.fileHas(filepath.Join(r.dir, "targets/us/app/1.json"), "web:2") },
		"empty: all that was committed before is applied": func() { require.Empty(r.t, out) },
		"published in edge": func() { r.printed.await(r.t, `edge  app/3  applied`) },
	}
	unseen := maps.Clone(comments)
	for line := range strings.Lines(sql) {
		text, comment := statement(line)
		out = r.query(text)
		if comment != "" {
			require.Contains(r.t, comments, comment)
			comments[comment]()
			delete(unseen, comment)
		}
	}
	require.Empty(r.t, slices.Collect(maps.Keys(unseen)))
}

// streams follows the stream in both ways, at the address that dev has printed.
func (r *readme) streams(sh string) {
	r.t.Helper()
	address := r.printed.await(r.t, `curl -N 'http://([^/]+)/`)[1]
	const port = "127.0.0.1:8081"
	require.Contains(r.t, sh, port)
	var follow []*logbook
	for line := range strings.Lines(sh) {
		text, _ := statement(line)
		if address != port {
			text = strings.Replace(text, port, address, 1)
			text = strings.Replace(text, "reconciler watch edge", "reconciler watch edge --server http://"+address, 1)
		}
		said := r.start(r.t.TempDir(), "exec "+text)
		said.await(r.t, `web:1`)
		follow = append(follow, said)
	}
	r.query("UPDATE apps SET image = 'web:3' WHERE id = 3")
	for _, said := range follow {
		said.await(r.t, `web:3`)
	}
}

// own runs the script for one's own database, as a role that may create schemas there, and tables.
func (r *readme) own(script string) {
	db := pgtest.Empty(r.t)
	role := db.Role(r.t, "readme", "")
	db.Exec(r.t, fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s; GRANT CREATE ON SCHEMA public TO %[2]s", db.Name, role))
	const example = "postgres://app@localhost/app"
	require.Contains(r.t, script, "="+example+"\n")
	dir := r.t.TempDir()
	r.start(dir, strings.Replace(script, example, "'"+db.URLFor(role)+"'", 1), "RECONCILER_LISTEN=off")
	r.fileHas(filepath.Join(dir, "eu", "app", "1.json"), "web:1")
}
