package file_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
)

const word = ".reconciler-owner"

var home = driver.Home{ID: "7d4f", System: "7400", Database: "app"}

// started opens a target and tells it whose it is.
func started(t *testing.T, target, dir string, home driver.Home) driver.Driver {
	t.Helper()
	d, err := file.Kind().Open(target, driver.Options{"dir": dir}, env())
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close(t.Context()) })
	d.(driver.Starter).Start(t.Context(), home)
	return d
}

func listed(t *testing.T, d driver.Driver) (found int, last error) {
	t.Helper()
	for _, err := range d.(driver.Lister).List(t.Context(), []string{"apps"}) {
		if last = err; err == nil {
			found++
		}
	}
	return found, last
}

func TestF4_ADirectoryBelongsToOneTarget(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "objects")
	mine := started(t, "eu", dir, home)
	requireDone(t, mine.Apply(t.Context(), object("a", `1`)))
	requireFile(t, filepath.Join(dir, word), `{"target":"eu","database":"app","system":"7400","id":"7d4f"}`+"\n")

	for name, other := range map[string]struct {
		target string
		home   driver.Home
	}{
		"AnotherTarget":   {"us", home},
		"AnotherDatabase": {"eu", driver.Home{ID: "99", System: "7400", Database: "other"}},
		"AnotherServer":   {"eu", driver.Home{ID: "99", System: "1", Database: "app"}},
		"UnknownServer":   {"eu", driver.Home{ID: "99", Database: "app"}},
		"MadeAnew":        {"eu", driver.Home{ID: "99", System: "7400", Database: "app"}},
		// F106: loaded from a dump, while the database that it was made of goes on.
		"DumpInAnotherDatabase": {"eu", driver.Home{ID: "7d4f", System: "7400", Database: "staging"}},
		"DumpOnAnotherServer":   {"eu", driver.Home{ID: "7d4f", System: "1", Database: "app"}},
		"AnAgent":               {"eu", driver.Home{ID: "7d4f", System: "7400", Database: "app", Agent: true}},
	} {
		t.Run(name, func(t *testing.T) {
			d := started(t, other.target, dir, other.home)
			said := "the directory " + dir + " belongs to target eu of database app (installation 7d4f, system 7400), not to " +
				driver.Owner{Target: other.target, Home: other.home}.String() + ", as " + filepath.Join(dir, word) +
				" says: give each target a directory of its own, or stop the other owner and remove that file to hand the directory over"
			for _, out := range []driver.Outcome{d.Apply(t.Context(), object("b", `2`)), d.Delete(t.Context(), object("a", `1`).Ref)} {
				require.Equal(t, driver.VerdictUnreachable, out.Verdict)
				require.EqualError(t, out.Err, said)
			}
			require.EqualError(t, d.(driver.Checker).Check(t.Context()), said)
			found, err := listed(t, d)
			require.Zero(t, found)
			require.ErrorContains(t, err, said)
			requireFile(t, filepath.Join(dir, "apps", "a.json"), "1\n")
		})
	}
	t.Run("AnotherProcess", func(t *testing.T) {
		requireDone(t, started(t, "eu", dir, home).Apply(t.Context(), object("a", `1`)))
	})
	t.Run("HandedOver", func(t *testing.T) {
		us := started(t, "us", dir, home)
		require.NoError(t, os.Remove(filepath.Join(dir, word)))
		requireDone(t, us.Apply(t.Context(), object("b", `2`)))
		require.Equal(t, driver.VerdictUnreachable, mine.Apply(t.Context(), object("a", `3`)).Verdict, "also for who had it before")
		requireFile(t, filepath.Join(dir, "apps", "a.json"), "1\n")
	})
	t.Run("Unreadable", func(t *testing.T) {
		write(t, filepath.Join(dir, word), "hello")
		out := mine.Apply(t.Context(), object("a", `3`))
		require.Equal(t, driver.VerdictUnreachable, out.Verdict)
		require.ErrorContains(t, out.Err, "may be another target's: invalid character 'h'")
	})
}

func TestF4_ADirectoryInAnotherTargetsIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	requireDone(t, started(t, "eu", dir, home).Apply(t.Context(), object("a", `1`)))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "apps"), link))
	out := started(t, "us", link, home).Apply(t.Context(), object("b", `1`))
	require.Equal(t, driver.VerdictUnreachable, out.Verdict)
	require.True(t, strings.HasPrefix(out.Err.Error(), "the directory "+link+" lies in one that belongs to target eu of database app ("+
		"installation 7d4f, system 7400), not to target us of database app ("), out.Err)
	require.NoFileExists(t, filepath.Join(dir, "apps", word))
}

// Who only looks (diff, doctor) makes no file and is refused nothing.
func TestLookingAtATargetClaimsNoDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := open(t, dir, nil)
	_, err := listed(t, d)
	require.NoError(t, err)
	require.NoError(t, d.(driver.Checker).Check(t.Context()))
	require.NoFileExists(t, filepath.Join(dir, word))
	requireDone(t, started(t, "eu", dir, home).Apply(t.Context(), object("a", `1`)))
	found, err := listed(t, d)
	require.NoError(t, err)
	require.Equal(t, 1, found)
}
