package scripts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/pgreconciler/reconciler/"

// arrows are what packages (prefixes of their paths, without the module's) must not import, and why.
var arrows = []struct {
	from, except []string
	not          []string
	why          string
}{
	{
		from: []string{"internal/config", "internal/database", "internal/desired", "internal/lease", "internal/measure", "internal/metrics", "internal/migrate", "internal/store", "internal/driver"},
		not:  []string{module + "internal/server", module + "internal/sync", module + "internal/apply", module + "internal/leader", module + "internal/outbox"},
		why:  "arrows point from outbox, leader, apply, sync and server to here",
	},
	{
		from: []string{"internal/outbox"},
		not:  []string{module + "internal/server", module + "internal/sync", module + "internal/apply", module + "internal/leader", module + "internal/desired", module + "internal/driver"},
		why:  "an event says only that something has changed",
	},
	{from: []string{"internal/leader"}, not: []string{module + "internal/server", module + "internal/sync", module + "internal/apply", module + "internal/driver"}, why: "the leader knows no target"},
	{from: []string{"internal/stream"}, not: []string{module + "internal/server", module + "internal/sync", module + "internal/apply", module + "internal/outbox"}, why: "it is a driver"},
	{from: []string{"internal/apply", "internal/sync"}, not: []string{module + "internal/server"}, why: "only cmd knows the server"},
	{from: []string{"internal/driver"}, except: []string{"internal/driver/postgres", "internal/driver/drivers", "internal/driver/fixtures"}, not: []string{"github.com/jackc/pgx", module + "internal/store"}, why: "drivers know nothing of PostgreSQL"},
	{
		from: []string{"internal/guard", "internal/throttle", "internal/queue", "internal/web"},
		not:  []string{"github.com/jackc/pgx", module + "internal/store", module + "internal/database", module + "internal/config", module + "internal/apply"},
		why:  "a program without PostgreSQL uses it",
	},
	{
		from: []string{"internal/agent"},
		not: []string{
			module + "internal/server", module + "internal/stream", module + "internal/watch", module + "internal/apply", module + "internal/outbox",
			module + "internal/lease", module + "internal/store", module + "internal/database", "github.com/jackc/pgx",
		},
		why: "it works without a database",
	},
	{from: []string{"internal/driver/postgres"}, not: []string{module + "internal/store"}, why: "the other database is not ours"},
	{from: []string{"client"}, not: []string{module + "internal", "github.com/jackc/pgx"}, why: "it is for programs without a database"},
	{from: []string{"internal", "cmd", "examples", "bench"}, except: []string{"internal/pgtest", "internal/driver/fixtures", "internal/server/servertest"}, not: []string{module + "internal/pgtest"}, why: "only tests start test servers"},
	{from: []string{"internal", "cmd", "client", "examples", "bench"}, except: []string{"internal/pgtest", "internal/devdb"}, not: []string{module + "internal/pgserver"}, why: "devdb and pgtest start servers"},
	{from: []string{"internal/pgserver"}, not: []string{module + "internal"}, why: "it knows PostgreSQL, and nothing of the product"},
	{from: []string{"internal", "cmd", "client", "examples", "bench"}, not: []string{"github.com/testcontainers", "github.com/moby"}, why: "only the module internal/pgtest/testcontainer imports them: they take half a minute of processor time to compile"},
	{from: []string{"internal", "cmd", "examples", "bench"}, not: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/applyconfigurations", "k8s.io/client-go/discovery", "k8s.io/client-go/restmapper"}, why: "they bring the types of all kinds: 15 MB of the binary, 12 MB of resident memory, and a minute of processor time to compile"},
	{from: []string{"internal", "cmd", "examples", "bench"}, not: []string{module + "internal/driver/fixtures", module + "internal/server/servertest", module + "internal/driver/kubernetes/fakeapi", module + "internal/driver/kubernetes/kubetest"}, why: "it is for tests"},
}

var drivers = []string{"discard", "exec", "file", "kubernetes", "postgres", "webhook"}

// A newcomer finds every package of the product in docs/architecture.md.
func TestArchitectureNamesEveryPackage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/architecture.md")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "go", "list", "../cmd/...", "../client/...", "../internal/...").Output()
	require.NoError(t, err)
	for _, path := range strings.Fields(string(out)) {
		name := strings.TrimPrefix(path, module)
		if strings.HasPrefix(name, "internal/driver/") {
			name = "internal/driver/..."
		}
		require.True(t, strings.Contains(string(page), "`"+name+"`"), name)
	}
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func under(path string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") })
}

// Imports point one way, as docs of the design draw them. Only imports of the product count: a test may look anywhere.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "../...").Output()
	require.NoError(t, err)
	packages := 0
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; packages++ {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		path := strings.TrimPrefix(p.ImportPath, module)
		for _, rule := range arrows {
			if !under(path, rule.from) || under(path, rule.except) {
				continue
			}
			for _, imported := range p.Imports {
				require.False(t, under(imported, rule.not), "%s imports %s: %s", path, imported, rule.why)
			}
		}
		require.NotContains(t, p.Imports, "log", "%s: use log/slog", path)
		name, isDriver := strings.CutPrefix(path, "internal/driver/")
		for _, other := range drivers {
			if isDriver && slices.Contains(drivers, name) && other != name {
				require.NotContains(t, p.Imports, module+"internal/driver/"+other, "%s: no driver imports another", path)
			}
		}
	}
	require.Greater(t, packages, 30, "go list lists the packages of the module")
}
