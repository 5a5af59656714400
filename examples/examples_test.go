package examples_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
	"github.com/pgreconciler/reconciler/internal/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFindNamesTheExamplesThatThereAre(t *testing.T) {
	t.Parallel()
	for _, e := range examples.All() {
		found, err := examples.Find(e.Name)
		require.NoError(t, err)
		require.Equal(t, e.Name, found.Name)
	}
	_, err := examples.Find("flet")
	require.EqualError(t, err, `there is no example "flet": the examples are fleet, prometheus, edge, kubernetes`)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	targets := map[string]map[string]string{ // name of a target -> its directory below the given one
		"fleet":      {"eu-west": "/eu-west", "us-east": "/us-east", "ap-south": "/ap-south"},
		"prometheus": {"prometheus": ""},
		"edge":       {},
		"kubernetes": {"eu": "", "us": ""},
	}

	t.Run("IsValidAsItStandsInTheRepository", func(t *testing.T) {
		t.Parallel()
		for name, want := range targets {
			cfg, err := config.Load(config.LoadOptions{Path: filepath.Join(name, "reconciler.yaml"), Registry: driver.Registry{file.Kind(), stream.Kind(), {Name: "kubernetes"}}})
			require.NoError(t, err)
			own := slices.DeleteFunc(slices.Clone(cfg.Targets), func(one config.Target) bool { return one.Driver == "stream" })
			require.Len(t, own, len(want), name)
		}
	})

	t.Run("IsValidForAnyDatabaseAndDirectory", func(t *testing.T) {
		t.Parallel()
		const database = "postgres://me:it's%20%22secret%22@db:5432/a%20b?sslmode=disable"
		dir := filepath.Join(t.TempDir(), `it's "here": #1 \ {{$}}`)
		for _, e := range examples.All() {
			text, err := e.Config(database, dir)
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "reconciler.yaml")
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			cfg, err := config.Load(config.LoadOptions{Path: path, Registry: driver.Registry{file.Kind(), stream.Kind(), {Name: "kubernetes"}}})
			require.NoError(t, err, text)
			require.Equal(t, database, cfg.DatabaseURL.Reveal())
			got := map[string]string{}
			for _, target := range cfg.Targets {
				if target.Driver == "stream" {
					continue
				}
				if target.Driver == "kubernetes" {
					require.Equal(t, "/tmp/kubernetes-clusters/"+target.Name+".kubeconfig", target.Options["kubeconfig"])
					continue
				}
				require.Equal(t, "file", target.Driver)
				got[target.Name], _ = target.Options["dir"].(string)
			}
			want := map[string]string{}
			for name, below := range targets[e.Name] {
				if e.Name != "kubernetes" {
					want[name] = dir + below
				}
			}
			require.Equal(t, want, got)
		}
	})
}
