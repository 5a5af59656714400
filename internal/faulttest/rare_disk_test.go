//go:build long

package faulttest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rareWatch looks at the files of a directory all the time, as readers of a target do, and says what was wrong.
type rareWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	looks  int
	err    error
}

// watch ends with the first file that is not whole: no JSON with the key of its name and a newline at the end.
func (d *rareDisk) watch(dir string) *rareWatch {
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.t.Context()))
	x := &rareWatch{cancel: cancel}
	x.done.Go(func() {
		ticker := time.NewTicker(rareGlance / 4)
		defer ticker.Stop()
		for ; x.err == nil; x.looks++ {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			x.err = rareWhole(dir)
		}
	})
	d.t.Cleanup(func() { _ = x.stop() })
	return x
}

func (x *rareWatch) stop() error {
	x.cancel()
	x.done.Wait()
	return x.err
}

func rareWhole(dir string) error {
	have, err := rareFiles(dir)
	for name, content := range have {
		var spec struct{ ID json.Number }
		if json.Unmarshal([]byte(content), &spec) != nil || !strings.HasSuffix(content, "\n") ||
			spec.ID.String()+".json" != filepath.Base(name) {
			err = errors.Join(err, fmt.Errorf("%s has %d bytes and is not whole: %.40q", name, len(content), content))
		}
	}
	return err
}

// rareDiskWorld is a world whose target eu is on a small disk.
func rareDiskWorld(t *testing.T) (w *rareWorld, disk *rareDisk, start rareStart, have func(string) map[string]string) {
	t.Helper()
	w = newRareWorld(t, pgtest.New(t))
	disk = newRareDisk(t, "1m")
	config := w.configure("disk", []rareObject{w.fileTarget("eu", rareObject{
		"options": rareObject{"dir": filepath.Join(disk.Dir, "eu")}, "backoff": rareObject{"max": "2s"},
	})})
	have = func(target string) map[string]string {
		files, err := rareFiles(filepath.Join(disk.Seen, target))
		require.NoError(t, err)
		return files
	}
	return w, disk, rareStart{binary: rareBinary(t, "new"), config: config, enter: disk.Enter}, have
}

// The disk of a file target is full: writes fail with a reason that a person understands, nothing is blocked for good,
// no reader ever sees half a file, and when there is room again everything is written.
func TestRareFullDiskIsWaitedOut(t *testing.T) {
	t.Parallel()
	w, disk, start, have := rareDiskWorld(t)
	w.fill(20, "eu")
	d := w.start(start)
	w.wait(start)
	w.equal(have, "eu")
	watch := disk.watch(filepath.Join(disk.Seen, "eu"))

	disk.fill()
	before := have("eu")
	w.exec(`UPDATE apps SET version = nextval('versions') WHERE id <= 10; INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(21, 30) AS i`)
	w.becomes("20", `SELECT count(*) FROM reconciler.failing WHERE state = 'failing' AND last_error = format('write %s/eu/app/%s.json: no space left on device', $1::text, key)`, disk.Dir)
	require.Equal(t, before, have("eu"))
	require.Equal(t, "failing, 0 blocked", w.text(`SELECT format('%s, %s blocked', state, blocked) FROM reconciler.status`))

	// A process that stops and one that starts then get along with it too.
	d.stop()
	d = w.start(start)
	d.awaits("sync_complete")
	require.Equal(t, before, have("eu"))
	disk.free()
	w.wait(start)
	w.equal(have, "eu")
	require.NoError(t, watch.stop())
	require.Greater(t, watch.looks, 20)
	d.stop()
	require.Equal(t, slices.Sorted(maps.Keys(w.rows()["eu"])), rareNames(t, filepath.Join(disk.Seen, "eu")), "temporary files stayed behind")
}

// A disk that the target's own objects have filled to the last byte: rows are deleted to make room, and that does it.
// A big object that does not fit keeps nobody else from the room that there is.
func TestRareDiskFullOfItsOwnObjectsIsFreedByDeletes(t *testing.T) {
	t.Parallel()
	w, disk, start, have := rareDiskWorld(t)
	w.exec(`CREATE TABLE blobs (id int PRIMARY KEY, pad text NOT NULL);
SELECT reconciler.track('blob', 'blobs', '{id}', $$'eu'$$)`)
	const most = 400 // of a block each
	w.fill(most, "eu")
	d := w.start(start)
	watch := disk.watch(filepath.Join(disk.Seen, "eu"))
	w.becomes("true", `SELECT count(*) > 50 FROM reconciler.failing`)
	require.Less(t, len(have("eu")), most)
	require.Error(t, os.WriteFile(disk.ballast(), []byte("x"), 0o600), "there is room on the disk")

	w.exec(`DELETE FROM apps WHERE id > 50`)
	w.wait(start)
	w.equal(have, "eu")

	const tooBig = 1 << 20
	w.exec(`INSERT INTO blobs SELECT i, repeat('x', $1::int) FROM generate_series(1, 4) AS i`, tooBig)
	w.becomes("4", `SELECT count(*) FROM reconciler.failing WHERE resource = 'blob'`)
	w.exec(`UPDATE apps SET version = nextval('versions')`)
	rareEventually(t, rarePatience, func() error {
		if n := len(rareSame(w.rows()["eu"], have("eu"))); n != 50 {
			return fmt.Errorf("%d apps are as they should be", n)
		}
		return nil
	}, "small objects beside a big one")
	w.exec(`UPDATE blobs SET pad = 'small'`)
	w.wait(start)
	require.NoError(t, watch.stop())
	want := w.rows()["eu"]
	for id := range 4 {
		want[fmt.Sprintf("blob/%d.json", id+1)] = fmt.Sprintf("{\"id\": %d, \"pad\": \"small\"}\n", id+1)
	}
	require.Equal(t, want, have("eu"))
	d.stop()
}

// rareSame returns what is the same in both.
func rareSame(a, b map[string]string) map[string]string {
	same := map[string]string{}
	for name, content := range a {
		if b[name] == content {
			same[name] = content
		}
	}
	return same
}

// rareNames lists every file in a directory, temporary ones too, but for the mark of whose it is.
func rareNames(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && entry.Name() != ".reconciler-owner" {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	}))
	slices.Sort(names)
	return names
}
