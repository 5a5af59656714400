package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
}

func requireFile(t *testing.T, path, content string) {
	t.Helper()
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(have))
}

func inode(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info
}

func TestAFileHoldsTheSpecAndNothingElse(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	requireDone(t, d.Apply(t.Context(), object("web-1.eu_2", `{"image": "web:1", "n": [1, 2]}`)))
	requireDone(t, d.Apply(t.Context(), object("raw", `"line 1\nline 2 \"ü\""`)))
	requireDone(t, d.Apply(t.Context(), object("../x", `12`)))
	requireFile(t, filepath.Join(dir, "apps", "web-1.eu_2.json"), `{"image": "web:1", "n": [1, 2]}`+"\n")
	requireFile(t, filepath.Join(dir, "apps", "raw.json"), "line 1\nline 2 \"ü\"")
	requireFile(t, filepath.Join(dir, "apps", "%2E.%2Fx.json"), "12\n")
	require.Len(t, fixtures.Files(t, dir), 3)
}

func TestAnUnchangedFileIsNotTouched(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	requireDone(t, d.Apply(t.Context(), object("web", `{"n": 1}`)))
	path := filepath.Join(dir, "apps", "web.json")
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(path, long, long))
	before := inode(t, path)

	requireDone(t, d.Apply(t.Context(), object("web", `{"n": 1}`)))
	require.True(t, os.SameFile(before, inode(t, path)))
	require.Equal(t, before.ModTime(), inode(t, path).ModTime())

	requireDone(t, d.Apply(t.Context(), object("web", `{"n": 2}`))) // of the same size
	require.False(t, os.SameFile(before, inode(t, path)))
	requireFile(t, path, `{"n": 2}`+"\n")
}

func TestAReaderSeesTheOldContentOrTheNew(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, driver.Options{"fsync": false})
	specs := []string{`"` + strings.Repeat("a", 1<<16) + `"`, `"` + strings.Repeat("b", 1<<15) + `"`}
	requireDone(t, d.Apply(t.Context(), object("web", specs[0])))
	path := filepath.Join(dir, "apps", "web.json")
	old, err := os.Open(path)
	require.NoError(t, err)
	defer old.Close()

	ctx, cancel := context.WithCancel(t.Context())
	written := make(chan driver.Outcome, 1)
	go func() {
		defer cancel()
		for i := range 100 {
			if o := d.Apply(t.Context(), object("web", specs[i%2])); o.Verdict != driver.VerdictDone {
				written <- o
				return
			}
		}
		written <- driver.Done()
	}()
	for ctx.Err() == nil {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, specs, `"`+string(content)+`"`)
	}
	requireDone(t, <-written)
	content := make([]byte, 1<<16)
	n, err := old.Read(content)
	require.NoError(t, err)
	require.Equal(t, specs[0], `"`+string(content[:n])+`"`)
}

func TestFilesHaveTheModeThatWasAskedFor(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "new")
	d := open(t, dir, driver.Options{"mode": "0666"}) // which every usual umask would cut
	requireDone(t, d.Apply(t.Context(), object("web", `{}`)))
	path := filepath.Join(dir, "apps", "web.json")
	require.Equal(t, os.FileMode(0o666), inode(t, path).Mode().Perm())

	secret := open(t, dir, driver.Options{"mode": "600"})
	requireDone(t, secret.Apply(t.Context(), object("web", `{}`))) // the content is there already
	require.Equal(t, os.FileMode(0o600), inode(t, path).Mode().Perm())

	private := filepath.Join(t.TempDir(), "private")
	requireDone(t, open(t, private, driver.Options{"mode": "0600"}).Apply(t.Context(), object("web", `{}`)))
	require.Equal(t, os.FileMode(0o700), inode(t, private).Mode().Perm())
	require.Equal(t, os.FileMode(0o700), inode(t, filepath.Join(private, "apps")).Mode().Perm())
}

func TestDeleteRemovesDirectoriesThatOnlyServedALongName(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	stem := strings.Repeat("k", 450)
	for _, key := range []string{stem + "a", stem + "b", strings.Repeat("k", 250)} {
		requireDone(t, d.Apply(t.Context(), object(key, `{}`)))
	}
	first := filepath.Join(dir, "apps", strings.Repeat("k", 200)+"%")
	second := filepath.Join(first, strings.Repeat("k", 200)+"%")
	requireDone(t, d.Delete(t.Context(), object(stem+"a", `{}`).Ref))
	require.DirExists(t, second)
	requireDone(t, d.Delete(t.Context(), object(stem+"b", `{}`).Ref))
	require.NoDirExists(t, second)
	require.DirExists(t, first)
	requireDone(t, d.Delete(t.Context(), object(strings.Repeat("k", 250), `{}`).Ref))
	require.NoDirExists(t, first)
	require.DirExists(t, filepath.Join(dir, "apps"))
}

func TestAPathThatNobodyCouldOpenIsTerminal(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	outcome := d.Apply(t.Context(), object(strings.Repeat("/", 2000), `{}`))
	require.Equal(t, driver.VerdictTerminal, outcome.Verdict)
	require.Regexp(t, `^the path of its file would have 6\d{3} bytes, and 4095 is the limit: `+
		`the key needs 6060 of them once encoded$`, outcome.Err.Error())
	requireDone(t, d.Delete(t.Context(), object(strings.Repeat("/", 2000), `{}`).Ref))
	require.Empty(t, fixtures.Files(t, dir))
}

func TestASpecThatIsNoJSONIsTerminal(t *testing.T) {
	t.Parallel()

	d := open(t, t.TempDir(), nil)
	outcome := d.Apply(t.Context(), object("web", `"cut`))
	require.Equal(t, driver.VerdictTerminal, outcome.Verdict)
	require.EqualError(t, outcome.Err, "the spec begins as a JSON string but is not one")
}

// C68.
func TestASymbolicLinkDoesNotLeadOut(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	dir, outside := filepath.Join(base, "target"), filepath.Join(base, "outside")
	write(t, filepath.Join(outside, "web.json"), "precious")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "apps")))
	d := open(t, dir, nil)

	outcome := d.Apply(t.Context(), object("web", `{}`))
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.EqualError(t, outcome.Err, "write "+filepath.Join(dir, "apps", "web.json")+": path escapes from parent")
	outcome = d.Delete(t.Context(), object("web", `{}`).Ref)
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.EqualError(t, outcome.Err, "remove "+filepath.Join(dir, "apps", "web.json")+": path escapes from parent")
	requireFile(t, filepath.Join(outside, "web.json"), "precious")
	require.Len(t, fixtures.Files(t, outside), 1)
}

// C68.
func TestALinkInThePlaceOfAFileIsReplacedAndNotFollowed(t *testing.T) {
	t.Parallel()

	base := t.TempDir()
	dir, precious := filepath.Join(base, "target"), filepath.Join(base, "precious")
	write(t, precious, "{}\n")
	write(t, filepath.Join(dir, "apps", "inside.json"), "{}\n")
	path := filepath.Join(dir, "apps", "web.json")
	d := open(t, dir, nil)
	for _, to := range []string{precious, "inside.json", "nowhere"} {
		require.NoError(t, os.Symlink(to, path))
		requireDone(t, d.Delete(t.Context(), object("web", `{}`).Ref))
		require.NoFileExists(t, path)

		require.NoError(t, os.Symlink(to, path))
		requireDone(t, d.Apply(t.Context(), object("web", `{}`)))
		require.True(t, inode(t, path).Mode().IsRegular())
		requireFile(t, path, "{}\n")
		requireDone(t, d.Delete(t.Context(), object("web", `{}`).Ref))
	}
	requireFile(t, precious, "{}\n")
	requireFile(t, filepath.Join(dir, "apps", "inside.json"), "{}\n")
}

func TestADirectoryInThePlaceOfAFileIsNotTheObject(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	path := filepath.Join(dir, "apps", "web.json")
	write(t, filepath.Join(path, "precious"), "x")
	outcome := d.Apply(t.Context(), object("web", `{}`))
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.EqualError(t, outcome.Err, "write "+path+": file exists")
	requireDone(t, d.Delete(t.Context(), object("web", `{}`).Ref))
	require.Equal(t, []string{filepath.Join(path, "precious")}, fixtures.Files(t, dir), "no temporary file is left")
}

func TestTheDirectoryIsMadeAgainWhenOnlyItIsMissing(t *testing.T) {
	t.Parallel()

	dir := filepath.Join(t.TempDir(), "target")
	d := open(t, dir, nil)
	require.NoDirExists(t, dir, "opening a driver changes nothing")
	requireDone(t, d.Apply(t.Context(), object("web", `{}`)))
	require.NoError(t, os.RemoveAll(dir))
	requireDone(t, d.Delete(t.Context(), object("web", `{}`).Ref))
	require.Empty(t, list(t, d, "apps"))
	require.NoDirExists(t, dir)
	requireDone(t, d.Apply(t.Context(), object("web", `{}`)))
	requireFile(t, filepath.Join(dir, "apps", "web.json"), "{}\n")

	// Another directory in its place, as after a mount, is the target from now on.
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Mkdir(dir, 0o755))
	requireDone(t, d.Apply(t.Context(), object("web", `{"n": 2}`)))
	requireFile(t, filepath.Join(dir, "apps", "web.json"), `{"n": 2}`+"\n")
	requireFile(t, filepath.Join(dir+".old", "apps", "web.json"), "{}\n")
}

func TestATargetThatIsGoneIsUnreachable(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		opts driver.Options
		ruin func(t *testing.T, parent, dir string)
		text func(parent, dir string) string
	}{
		"MissingAndNotToBeMade": {
			opts: driver.Options{"create": false},
			ruin: func(t *testing.T, _, dir string) { require.NoError(t, os.RemoveAll(dir)) },
			text: func(_, dir string) string {
				return "the directory " + dir + " cannot be used: no such file or directory"
			},
		},
		"ParentMissing": {
			ruin: func(t *testing.T, parent, _ string) { require.NoError(t, os.RemoveAll(parent)) },
			text: func(parent, _ string) string {
				return "the directory " + parent + " cannot be used: no such file or directory"
			},
		},
		"ReplacedByAFile": {
			ruin: func(t *testing.T, _, dir string) {
				require.NoError(t, os.RemoveAll(dir))
				write(t, dir, "x")
			},
			text: func(_, dir string) string { return dir + " is not a directory" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			parent := filepath.Join(t.TempDir(), "parent")
			dir := filepath.Join(parent, "dir")
			require.NoError(t, os.MkdirAll(dir, 0o755))
			d := open(t, dir, c.opts)
			requireDone(t, d.Apply(t.Context(), object("web", `{}`)))
			c.ruin(t, parent, dir)

			for _, o := range []driver.Outcome{
				d.Apply(t.Context(), object("web", `{}`)), d.Delete(t.Context(), object("web", `{}`).Ref),
			} {
				require.Equal(t, driver.VerdictUnreachable, o.Verdict)
				require.EqualError(t, o.Err, c.text(parent, dir))
			}
			require.EqualError(t, d.(driver.Checker).Check(t.Context()), c.text(parent, dir))
			require.Error(t, listError(t, d, "apps"), "a listing of a target that is gone must not look complete") // I5
		})
	}
}

func TestAnOwnerThatWasDeposedReplacesNothing(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	d := open(t, dir, nil)
	requireDone(t, d.Apply(t.Context(), object("web", `{"n": 1}`)))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the lease was lost"))
	outcome := d.Apply(ctx, object("web", `{"n": 2}`))
	require.Equal(t, driver.VerdictBackoff, outcome.Verdict)
	require.EqualError(t, outcome.Err, "write "+filepath.Join(dir, "apps", "web.json")+": the lease was lost")
	requireFile(t, filepath.Join(dir, "apps", "web.json"), `{"n": 1}`+"\n")
}
