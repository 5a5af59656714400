package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
)

func list(t *testing.T, d driver.Driver, resource string) map[string][]driver.Hash {
	t.Helper()
	found := map[string][]driver.Hash{}
	for listed, err := range d.(driver.Lister).List(t.Context(), []string{resource}) {
		require.NoError(t, err)
		found[listed.Key] = listed.Hashes
	}
	return found
}

func listError(t *testing.T, d driver.Driver, resource string) error {
	t.Helper()
	var last error
	for _, err := range d.(driver.Lister).List(t.Context(), []string{resource}) {
		last = err
	}
	return last
}

func hash(spec string) driver.Hash { return driver.HashSpec([]byte(spec)) }

// F129: a file with another mode differs, and is mended where it is.
func TestF129_ModesAreRepaired(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	requireDone(t, open(t, dir, nil).Apply(t.Context(), object("1", `{"n": 1}`)))
	path := filepath.Join(dir, "apps", "1.json")
	d := open(t, dir, map[string]any{"mode": "0600"})
	for _, mode := range []os.FileMode{0o644, 0o666, 0o400} {
		require.NoError(t, os.Chmod(path, mode))
		require.Equal(t, map[string][]driver.Hash{"1": {driver.HashSpec(nil)}}, list(t, d, "apps"), mode)
		requireDone(t, d.Apply(t.Context(), object("1", `{"n": 1}`)))
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		require.Contains(t, list(t, d, "apps")["1"], hash(`{"n": 1}`))
	}
}

// C49.
func TestListTellsEditedMissingAndOrphanedFiles(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	for _, key := range []string{"same", "edited", "removed", "touched", "no newline"} {
		requireDone(t, d.Apply(t.Context(), object(key, `{"n": 1}`)))
	}
	write(t, filepath.Join(dir, "apps", "edited.json"), `{"n": 2}`+"\n")
	write(t, filepath.Join(dir, "apps", "no%20newline.json"), `{"n": 1}`)
	write(t, filepath.Join(dir, "apps", "orphan.json"), "")
	require.NoError(t, os.Remove(filepath.Join(dir, "apps", "removed.json")))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "apps", "touched.json"), time.Now(), time.Unix(0, 0)))

	require.Equal(t, map[string][]driver.Hash{
		"same":       {hash(`"{\"n\": 1}\n"`), hash(`{"n": 1}`)},
		"touched":    {hash(`"{\"n\": 1}\n"`), hash(`{"n": 1}`)},
		"edited":     {hash(`"{\"n\": 2}\n"`), hash(`{"n": 2}`)},
		"no newline": {hash(`"{\"n\": 1}"`)},
		"orphan":     {hash(`""`)},
	}, list(t, d, "apps"))
}

func TestAStringsJSONIsNotTakenForTheString(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	write(t, filepath.Join(dir, "apps", "web.json"), "\"text\"\n") // the spec "text" would be written as text
	require.Equal(t, map[string][]driver.Hash{"web": {hash(`"\"text\"\n"`)}}, list(t, d, "apps"))
}

func TestListLeavesForeignFilesAlone(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	apps := filepath.Join(dir, "apps")
	foreign := []string{
		".hidden.json", "README.md", "web.json~", "web.json.bak", "a b.json", "%41.json", "sub/web.json", "web", "-x.json",
		strings.Repeat("a", 201) + ".json", ".json", "d.json/web.json", "short%/web.json",
	}
	for _, name := range foreign {
		write(t, filepath.Join(apps, name), "{}\n")
	}
	write(t, filepath.Join(dir, "apps.json"), "{}\n")
	require.Empty(t, list(t, d, "apps"))
	require.Len(t, fixtures.Files(t, apps), len(foreign))
}

func TestWhatIsNoPlainFileDiffersFromEverySpec(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	requireDone(t, d.Apply(t.Context(), object("real", `{}`)))
	apps := filepath.Join(dir, "apps")
	require.NoError(t, os.Symlink("real.json", filepath.Join(apps, "link.json")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(apps, "fifo.json"), 0o600)) // opening it would wait for ever
	found := list(t, d, "apps")
	require.Equal(t, []driver.Hash{hash("")}, found["link"])
	require.Equal(t, []driver.Hash{hash("")}, found["fifo"])
	require.Len(t, found, 3)

	requireDone(t, d.Apply(t.Context(), object("fifo", `{}`)))
	requireDone(t, d.Delete(t.Context(), object("link", `{}`).Ref))
	require.Equal(t, map[string][]driver.Hash{
		"real": {hash(`"{}\n"`), hash(`{}`)}, "fifo": {hash(`"{}\n"`), hash(`{}`)},
	}, list(t, d, "apps"))
}

func TestListSweepsWhatKilledProcessesLeft(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	long := strings.Repeat("k", 201)
	requireDone(t, d.Apply(t.Context(), object(long, `{}`)))
	apps := filepath.Join(dir, "apps")
	stale := filepath.Join(apps, ".reconciler-STALE.tmp")
	nested := filepath.Join(apps, strings.Repeat("k", 200)+"%", ".reconciler-STALE.tmp")
	fresh := filepath.Join(apps, ".reconciler-FRESH.tmp")
	for _, path := range []string{stale, nested, fresh} {
		write(t, path, "half")
	}
	old := time.Now().Add(-2 * time.Minute)
	require.NoError(t, os.Chtimes(stale, old, old))
	require.NoError(t, os.Chtimes(nested, old, old))

	require.Equal(t, map[string][]driver.Hash{long: {hash(`"{}\n"`), hash(`{}`)}}, list(t, d, "apps"))
	require.NoFileExists(t, stale)
	require.NoFileExists(t, nested)
	require.FileExists(t, fresh, "another call may be writing it")
}

// C68, I5.
func TestListOfALinkThatLeadsOutIsNoListing(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	dir := filepath.Join(base, "target")
	require.NoError(t, os.MkdirAll(filepath.Join(base, "outside"), 0o755))
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Symlink("../outside", filepath.Join(dir, "apps")))
	require.EqualError(t, listError(t, open(t, dir, nil), "apps"),
		`list the files of "apps" in `+dir+`: path escapes from parent`)
}

func TestListReadsManyFilesAPageAtATime(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, driver.Options{"fsync": false})
	const count = 1500
	for i := range count {
		requireDone(t, d.Apply(t.Context(), object("k"+string(rune('a'+i%26))+strings.Repeat("x", i%50)+time.Duration(i).String(), `{}`)))
	}
	require.Len(t, list(t, d, "apps"), count)
}
