package compare_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/examples/fleet/demo/compare"
	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/file"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

var targets = []string{"ap-south", "eu-west", "us-east"}

// small is a fleet with 20 topologies in each region, and odd names among its policies.
const (
	smallTopologies = 20
	oddPolicies     = `INSERT INTO fleet.network_policies (name, workspace_id, region, direction, action, cidr) VALUES
		('../../../etc/passwd', 1, 'eu-west', 'ingress', 'deny', '10.9.0.0/24'), ('.hidden', 1, NULL, 'ingress', 'deny', '10.9.1.0/24'),
		('-rf', 1, 'eu-west', 'egress', 'allow', '::/0'), ('Zürich office/2nd floor', 1, 'eu-west', 'ingress', 'allow', '10.9.2.0/24')`
)

// spec101 is as much of the spec of topology 101 as a message shows.
const spec101 = `{"app":"web","command":["/bin/web","serve"],"env":{"APP_ENV":"production","LOG_LEVEL":"info","PORT":"8001"},"environment...`

var small = map[string]string{"fleet.live": "20", "fleet.historical": "100", "fleet.policies": "30"}

// fleet is a small fleet whose rows a product without a fault has written into three directories.
type fleet struct {
	db   *exampletest.Database
	conn *pgx.Conn
	dir  string
}

func setup(t *testing.T) *fleet {
	t.Helper()
	server := pgtest.New(t)
	example, err := examples.Find("fleet")
	require.NoError(t, err)
	f := &fleet{db: exampletest.New(t, server.URL, example, small), conn: server.Conn(t), dir: t.TempDir()}
	require.NoError(t, example.Fill(t.Context(), f.db.SQL))
	f.db.Exec(t, oddPolicies)
	f.write(t)
	return f
}

// write fills the directories by way of the tracked views and the file driver.
func (f *fleet) write(t *testing.T) {
	t.Helper()
	for _, target := range targets {
		drv, err := file.Kind().Open(target, driver.Options{"dir": filepath.Join(f.dir, target), "fsync": false}, driver.Env{Getenv: os.Getenv})
		require.NoError(t, err)
		for _, resource := range []string{"topology", "network_policy"} {
			rows, err := f.conn.Query(t.Context(), "SELECT key, spec::text FROM reconciler.desired_"+resource+" WHERE running AND coalesce(target, $1) = $1", target)
			require.NoError(t, err)
			var key, spec string
			_, err = pgx.ForEachRow(rows, []any{&key, &spec}, func() error {
				return drv.Apply(t.Context(), driver.Object{Ref: driver.Ref{Target: target, Resource: resource, Key: key}, Spec: []byte(spec)}).Err
			})
			require.NoError(t, err)
		}
		require.NoError(t, drv.Close(t.Context()))
	}
}

func (f *fleet) path(target, name string) string { return filepath.Join(f.dir, target, name) }

// judge compares all three directories.
func (f *fleet) judge(t *testing.T) (total compare.Found, said []string) {
	t.Helper()
	wanted, err := compare.Read(t.Context(), f.conn, targets)
	require.NoError(t, err)
	require.Len(t, wanted, len(targets))
	for _, target := range targets {
		found, err := wanted.Directory(target, f.path(target, ""))
		require.NoError(t, err)
		total.Files += found.Files
		total.Leftovers += found.Leftovers
		for _, difference := range found.Differences {
			said = append(said, difference.String())
		}
	}
	return total, said
}

func TestAgreesWithTheProductOnEveryFile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	found, said := f.judge(t)
	require.Empty(t, said)
	wanted, err := compare.Read(t.Context(), f.conn, targets)
	require.NoError(t, err)
	const policies = 30 + 2*3 + 3 + 3 // 3 of the 30, and 1 of the 4 odd ones, are for every region
	require.Equal(t, 3*smallTopologies+policies, wanted.Rows())
	require.Equal(t, compare.Found{Files: wanted.Rows()}, found)
	require.FileExists(t, f.path("eu-west", "network_policy/%2E.%2F..%2F..%2Fetc%2Fpasswd.json"))
}

// Every kind of damage must be seen: a comparison that cannot fail is worth nothing.
func TestSeesATamperedFile(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const victim = "topology/101.json"
	original, err := os.ReadFile(f.path("eu-west", victim))
	require.NoError(t, err)
	edit := func(old, replacement string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			require.Contains(t, string(original), old)
			f.put(t, victim, strings.Replace(string(original), old, replacement, 1))
		}
	}
	for name, test := range map[string]struct {
		tamper func(t *testing.T)
		path   string
		want   string
	}{
		"Missing":       {func(t *testing.T) { require.NoError(t, os.Remove(f.path("eu-west", victim))) }, victim, "it is missing"},
		"AnotherNumber": {edit(`"replicas": 3`, `"replicas": 4`), victim, "replicas is 4, and the row says 3"},
		"NumberAsText":  {edit(`"replicas": 3`, `"replicas": "3"`), victim, `replicas is "3", and the row says 3`},
		"DeepInside":    {edit(`"cpu": "500m"`, `"cpu": "250m"`), victim, `resources.cpu is "250m", and the row says "500m"`},
		"AnotherItem":   {edit(`"serve"`, `"stop"`), victim, `command[1] is "stop", and the row says "serve"`},
		"ShorterList":   {edit(`["/bin/web", "serve"]`, `["/bin/web"]`), victim, `command is ["/bin/web"], and the row says ["/bin/web","serve"]`},
		"AnotherKind":   {edit(`["/bin/web", "serve"]`, `{"0": "/bin/web"}`), victim, `command is {"0":"/bin/web"}, and the row says ["/bin/web","serve"]`},
		"FieldTooMany":  {edit(`"replicas"`, `"extra": null, "replicas"`), victim, "extra is there, and no column asks for it"},
		"FieldTooFew":   {edit(`"replicas": 3, `, ""), victim, "replicas is missing"},
		"Empty":         {edit(string(original), ""), victim, "it is no JSON: it is empty"},
		"Cut":           {edit(string(original), string(original[:40])), victim, "it is no JSON: unexpected EOF"},
		"Twice":         {edit(string(original), string(original)+string(original)), victim, "it is no JSON: something follows the JSON value"},
		"NotAnObject":   {edit(string(original), "null"), victim, "it is null, and the row says " + spec101},
		"OneTooMany":    {f.puts("topology/99.json", string(original)), "topology/99.json", "no running row wants it"},
		"BesideThem":    {f.puts("README", "hello"), "README", "no running row wants it"},
		"HiddenOne":     {f.puts("topology/.101.json", string(original)), "topology/.101.json", "no running row wants it"},
		"OfAnotherOne":  {f.puts("network_policy/101.json", string(original)), "network_policy/101.json", "no running row wants it"},
		"FurtherDown":   {f.puts("topology/more/101.json", string(original)), "topology/more/101.json", "no running row wants it"},
		"LinkInstead":   {f.link(victim), victim, "it is no file, but L---------"},
		"ZeroBeforeKey": {f.puts("topology/0101.json", string(original)), "topology/0101.json", "no running row wants it"},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the directory
			test.tamper(t)
			defer f.restore(t, victim, test.path, string(original))
			_, said := f.judge(t)
			require.Equal(t, []string{"eu-west/" + test.path + ": " + test.want}, said)
		})
	}
	_, said := f.judge(t)
	require.Empty(t, said)
}

func (f *fleet) put(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(f.path("eu-west", path)), 0o755))
	require.NoError(t, os.WriteFile(f.path("eu-west", path), []byte(content), 0o600))
}

func (f *fleet) puts(path, content string) func(t *testing.T) {
	return func(t *testing.T) { t.Helper(); f.put(t, path, content) }
}

// link moves a file away and leaves a link to it, which reads the same.
func (f *fleet) link(path string) func(t *testing.T) {
	return func(t *testing.T) {
		t.Helper()
		elsewhere := filepath.Join(t.TempDir(), "elsewhere.json")
		require.NoError(t, os.Rename(f.path("eu-west", path), elsewhere))
		require.NoError(t, os.Symlink(elsewhere, f.path("eu-west", path)))
	}
}

func (f *fleet) restore(t *testing.T, victim, path, original string) {
	t.Helper()
	if path != victim {
		require.NoError(t, os.Remove(f.path("eu-west", path)))
	}
	_ = os.Remove(f.path("eu-west", victim)) // a link must not be written through
	f.put(t, victim, original)
}

func TestSeesARowThatTheFilesDoNotFollow(t *testing.T) {
	t.Parallel()
	f := setup(t)
	for _, test := range []struct{ change, undo, want string }{
		{
			"UPDATE fleet.topologies SET replicas = 9 WHERE id = 101", "UPDATE fleet.topologies SET replicas = 3 WHERE id = 101",
			"eu-west/topology/101.json: replicas is 3, and the row says 9",
		},
		{
			"UPDATE fleet.topologies SET desired_status = 'stopped' WHERE id = 101", "UPDATE fleet.topologies SET desired_status = 'running' WHERE id = 101",
			"eu-west/topology/101.json: no running row wants it",
		},
		{
			"UPDATE fleet.topologies SET desired_status = 'running' WHERE id = 2", "UPDATE fleet.topologies SET desired_status = 'stopped' WHERE id = 2",
			"ap-south/topology/2.json: it is missing",
		},
		{
			"UPDATE fleet.network_policies SET port = 443 WHERE name = '-rf'", "UPDATE fleet.network_policies SET port = NULL WHERE name = '-rf'",
			"eu-west/network_policy/%2Drf.json: port is null, and the row says 443",
		},
		{
			"UPDATE fleet.environments SET variables = '{\"APP_ENV\": \"test\"}' WHERE id = 1; UPDATE fleet.deployments SET env = env || '{\"APP_ENV\": \"production\"}' WHERE id = 101", "",
			"",
		},
	} {
		f.db.Exec(t, test.change)
		_, said := f.judge(t)
		require.Equal(t, test.want, strings.Join(said, "\n"), test.change)
		f.db.Exec(t, test.undo)
	}
	f.db.Exec(t, "UPDATE fleet.regions SET active = false WHERE code = 'us-east'; UPDATE fleet.workspaces SET suspended = true")
	_, said := f.judge(t)
	require.Len(t, said, 3*smallTopologies)
	f.db.Exec(t, "UPDATE fleet.workspaces SET suspended = false")
	_, said = f.judge(t)
	require.Len(t, said, smallTopologies)
}

func TestCountsWhatAKilledProcessLeftApart(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.put(t, "topology/.reconciler-ABC.tmp", "half of it")
	f.put(t, "topology/.reconciler-ABC.json", "not one of them")
	found, said := f.judge(t)
	require.Equal(t, 1, found.Leftovers)
	require.Equal(t, []string{"eu-west/topology/.reconciler-ABC.json: no running row wants it"}, said)
}

func TestADirectoryThatIsGoneIsAnError(t *testing.T) {
	t.Parallel()
	f := setup(t)
	require.NoError(t, os.RemoveAll(f.path("eu-west", "")))
	wanted, err := compare.Read(t.Context(), f.conn, targets)
	require.NoError(t, err)
	_, err = wanted.Directory("eu-west", f.path("eu-west", ""))
	require.ErrorContains(t, err, "read the files of eu-west: ")
}

func TestComparesObjectsInMemory(t *testing.T) {
	t.Parallel()
	wanted := compare.Wanted{"edge": {"topology/1.json": {"a": true}, "topology/2.json": {}}}
	require.Empty(t, wanted.Objects("edge", map[string][]byte{"topology/1.json": []byte(`{"a":true}`), "topology/2.json": []byte("{}")}))
	require.Equal(t, "[edge/topology/1.json: a is false, and the row says true edge/topology/3.json: no running row wants it edge/topology/2.json: it is missing]",
		fmt.Sprint(wanted.Objects("edge", map[string][]byte{"topology/1.json": []byte(`{"a":false}`), "topology/3.json": []byte("{}")})))
}

func TestImportsNothingOfTheProduct(t *testing.T) {
	t.Parallel()
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	read := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, spec := range parsed.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			require.NoError(t, err)
			require.NotContains(t, path, "pgreconciler", source)
		}
		read++
	}
	require.Positive(t, read)
}
