package e2e_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// leftover is the name of a file that a killed process was still writing. Readers of a target know it by its dot.
var leftover = regexp.MustCompile(`^\.reconciler-[A-Z0-9]+\.tmp$`)

// mark is the file that says whose a target's directory is.
const mark = ".reconciler-owner"

// files returns the content of every file of a target by its path in it. A target without a directory is empty.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	have := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || entry.IsDir() || leftover.MatchString(entry.Name()) || path == filepath.Join(dir, mark) {
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
	require.NoError(t, err)
	return have
}

// has waits until a target's files are these and no others.
func (w *world) has(target string, want map[string]string) {
	w.t.Helper()
	eventually(w.t, patience, func() error { return w.differs(target, want) }, "files of target "+target)
}

func (w *world) differs(target string, want map[string]string) error {
	if want == nil {
		want = map[string]string{}
	}
	if diff := cmp.Diff(want, files(w.t, w.path(target))); diff != "" {
		return fmt.Errorf("target %s: rows (-) and files (+) differ:\n%s", target, diff)
	}
	return nil
}

// fleet is the table that most tests write to: an app runs in a region, which names its target. Its spec is the row
// but for the columns region and state.
const fleet = `
CREATE TABLE apps (
    id bigint PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'running');
CREATE INDEX ON apps (region, id) WHERE state = 'running';
SELECT reconciler.track('app', 'apps', '{id}', 'region', running => $$state = 'running'$$, ignore => '{region,state}')`

// rows reads from the table of the fleet what each target must have.
func (w *world) rows() map[string]map[string]string {
	w.t.Helper()
	rows, err := w.db.Pool.Query(w.t.Context(),
		`SELECT region, format('app/%s.json', id), format(E'{"id": %s, "version": %s}\n', id, version) FROM apps WHERE state = 'running'`)
	require.NoError(w.t, err)
	defer rows.Close()
	want := map[string]map[string]string{}
	for rows.Next() {
		var region, name, content string
		require.NoError(w.t, rows.Scan(&region, &name, &content))
		if want[region] == nil {
			want[region] = map[string]string{}
		}
		want[region][name] = content
	}
	require.NoError(w.t, rows.Err())
	return want
}

// converges waits until everything is applied, says the product; then the targets' files must be the rows, in fact.
func (w *world) converges(targets ...string) {
	w.t.Helper()
	w.wait()
	w.equal(targets...)
}

// equal compares the targets' files with the rows of the fleet.
func (w *world) equal(targets ...string) {
	w.t.Helper()
	want := w.rows()
	for _, target := range targets {
		require.NoError(w.t, w.differs(target, want[target]), "VIOLATION: wait() says that everything is applied")
	}
}

// tamper changes a file behind the product's back.
func (w *world) tamper(path string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path(path), []byte("edited"), 0o600))
}
