package file_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/file"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env() driver.Env {
	return driver.Env{Getenv: os.Getenv, Logger: slog.New(slog.DiscardHandler)}
}

// open opens the driver on the directory and closes it after the test.
func open(t *testing.T, dir string, more driver.Options) driver.Driver {
	t.Helper()
	opts := driver.Options{"dir": dir}
	maps.Copy(opts, more)
	d, err := file.Kind().Open("test", opts, env())
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close(t.Context()) })
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()

	for name, more := range map[string]driver.Options{
		"Synced":   {},
		"Unsynced": {"fsync": false, "mode": "0600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return fixtures.File(t, more) })
		})
	}
}

func object(key, spec string) driver.Object {
	return driver.Object{
		Ref: driver.Ref{Target: "test", Resource: "apps", Key: key, Revision: 1, Term: 1}, Spec: []byte(spec),
		Hash: driver.HashSpec([]byte(spec)),
	}
}

func requireDone(t *testing.T, o driver.Outcome) {
	t.Helper()
	require.Equal(t, driver.Done(), o)
}

// Whatever the keys are, what is listed is what was applied: no two keys share a file, and none is lost in another's
// directory.
func TestListedKeysAreTheAppliedOnes(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		dir := t.TempDir()
		d, err := file.Kind().Open("test", driver.Options{"dir": dir}, env())
		require.NoError(r, err)
		part := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"a", "%", "/", ".json", "..", "%2F", "-", "\x00", "A", "é", strings.Repeat("a", 200)}))
		keys := rapid.SliceOfNDistinct(rapid.Map(rapid.SliceOfN(part, 0, 3), func(parts []string) string { return strings.Join(parts, "") }), 1, 8, rapid.ID).Draw(r, "keys")
		resource := rapid.SampledFrom([]string{"apps", "a/b", "..", "x.json"}).Draw(r, "resource")
		list := func() map[string]bool {
			found := map[string]bool{}
			for listed, err := range d.(driver.Lister).List(context.Background(), []string{resource}) {
				require.NoError(r, err)
				require.False(r, found[listed.Key], "%q is listed twice", listed.Key)
				found[listed.Key] = true
			}
			return found
		}
		want := map[string]bool{}
		for _, key := range keys {
			obj := object(key, `"x"`)
			obj.Resource = resource
			require.Equal(r, driver.Done(), d.Apply(context.Background(), obj))
			want[key] = true
		}
		require.Equal(r, want, list())
		for _, key := range keys {
			ref := object(key, "").Ref
			ref.Resource = resource
			require.Equal(r, driver.Done(), d.Delete(context.Background(), ref))
			delete(want, key)
			require.Equal(r, want, list())
		}
		require.NoError(r, d.Close(context.Background()))
	})
}
