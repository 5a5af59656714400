package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
	"github.com/pgreconciler/reconciler/internal/driver/fixtures"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// fixturesOf returns a new target of each driver.
func fixturesOf(t *testing.T) map[string]func(*testing.T) drivertest.Fixture {
	t.Helper()
	store, err := fixtures.BuildStore(t.TempDir())
	require.NoError(t, err)
	return map[string]func(*testing.T) drivertest.Fixture{
		"discard": func(t *testing.T) drivertest.Fixture { return fixtures.Discard(t, nil) },
		"exec":    func(t *testing.T) drivertest.Fixture { return fixtures.Exec(t, store) },
		"file":    func(t *testing.T) drivertest.Fixture { return fixtures.File(t, nil) },
		"postgres": func(t *testing.T) drivertest.Fixture {
			return fixtures.Postgres(t, "", `"reconciled_objects"`, driver.Options{"create": true})
		},
		"webhook": fixtures.Webhook,
	}
}

// A6: each driver keeps the rules of drivers when an agent calls it.
func TestEveryDriverWorksBehindAnAgent(t *testing.T) {
	t.Parallel()
	for name, fixture := range fixturesOf(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Exercise(t, func(t *testing.T) drivertest.Fixture { return putBehind(t, fixture(t)) })
		})
	}
}

// A6: an agent finds and repairs what others have changed, with each driver that lists.
func TestAgentRepairsDriftWithEveryDriverThatLists(t *testing.T) {
	t.Parallel()
	for name, fixture := range fixturesOf(t) {
		if name == "discard" || name == "webhook" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fixture(t)
			far, b := f.Driver, newBehind(t, f)
			t.Cleanup(func() { require.NoError(t, b.Close(context.WithoutCancel(t.Context()))) })
			object := func(key, spec string, term, revision int64) driver.Object {
				ref := driver.Ref{Target: f.Target, Resource: "app", Key: key, Term: term, Revision: revision}
				return driver.Object{Ref: ref, Spec: json.RawMessage(spec), Hash: driver.HashSpec([]byte(spec))}
			}
			require.Equal(t, driver.Done(), b.Apply(t.Context(), object("web", "1", 1, 1)))
			require.Equal(t, driver.Done(), b.Apply(t.Context(), object("api", "1", 1, 2)))
			term := b.agent.identity.Term // which some drivers compare
			require.Equal(t, driver.Done(), far.Apply(t.Context(), object("web", "9", term, 2)))
			require.Equal(t, driver.Done(), far.Apply(t.Context(), object("orphan", "9", term, 2)))
			require.Equal(t, driver.Done(), far.Delete(t.Context(), object("api", "", term, 2).Ref))
			b.agent.targets[0].session.controller.List()
			require.NoError(t, pgtest.Poll(t.Context(), pgtest.Patience, func() error {
				for key, want := range map[string]string{"web": "1", "api": "1", "orphan": ""} {
					if has, _ := f.Read(t, "app", key); strings.TrimSpace(has) != want {
						return fmt.Errorf("%s is %q, and should be %q", key, has, want)
					}
				}
				return nil
			}))
			for _, kind := range []string{"different", "missing"} {
				var m dto.Metric
				require.NoError(t, b.agent.targets[0].metrics.drift.WithLabelValues(f.Target, kind).Write(&m))
				require.NotZero(t, m.GetCounter().GetValue(), kind)
			}
		})
	}
}

// An agent works without a database, so nothing that it is made of knows one.
func TestAgentImportsNothingOfTheDatabase(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	require.NoError(t, err)
	const module = "github.com/pgreconciler/reconciler/"
	packages := strings.Fields(string(out))
	require.Contains(t, packages, module+"client")
	for _, path := range packages {
		require.NotContains(t, []string{module + "internal/store", module + "internal/database"}, path)
	}
}
