package fleet_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// patient makes wait() wait longer than its default, for machines that are busy.
var patient = strings.NewReplacer("reconciler.wait()", "reconciler.wait('5 minutes')")

// TestReadmeIsTrue types what README.md has people type, beside a running reconciler.
func TestReadmeIsTrue(t *testing.T) {
	t.Parallel()
	database := pgtest.New(t)
	db := exampletest.New(t, database.URL, fleet(t), nil)
	require.NoError(t, fleet(t).Fill(t.Context(), db.SQL))
	dir := t.TempDir()
	startReconciler(t, database.URL, dir)
	compare(t, db, dir, 3240)
	require.Equal(t, []string{"ap-south ok 1080 1080", "eu-west ok 1080 1080", "us-east ok 1080 1080"},
		exampletest.Rows[string](t, db, "SELECT concat_ws(' ', target, state, objects, applied) FROM reconciler.status ORDER BY target"))

	conn := database.Conn(t)
	const hold, freeze = "SELECT target, state, held, guard FROM reconciler.status", "SELECT reconciler.resume('us-east');"
	shown := map[string]bool{}
	for _, block := range exampletest.Readme(t) {
		for _, statement := range block {
			lines := typed(t, conn, patient.Replace(statement))
			switch statement {
			case "SELECT * FROM reconciler.wait()", "SELECT * FROM reconciler.wait();":
				require.Empty(t, lines)
			case hold, hold + ";":
				require.Equal(t, []string{"held"}, exampletest.Rows[string](t, db, "SELECT state FROM reconciler.status WHERE target = 'ap-south' AND held = 1000"))
			case freeze:
				typed(t, conn, patient.Replace("SELECT * FROM reconciler.wait()"))
			}
			shown[strings.TrimSuffix(statement, ";")] = true
		}
	}
	require.True(t, shown[hold])
	compare(t, db, dir, 3240-1000+2-2) // a region off, a policy in two more regions, two policies deleted
}

// startReconciler migrates by, and runs, the command itself, with the example's config.
func startReconciler(t *testing.T, databaseURL, dir string) {
	t.Helper()
	config, err := fleet(t).Config(databaseURL, dir)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "reconciler.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	env := []string{"RECONCILER_LISTEN=off"}
	exampletest.Run(t, env, reconcilerBinary, "migrate", "up", "-c", file)
	exampletest.Start(t, env, reconcilerBinary, "run", "-c", file)
	exampletest.Run(t, env, reconcilerBinary, "wait", "--timeout", "5m", "-c", file)
}

// typed runs one statement and returns a line for each row.
func typed(t *testing.T, conn *pgx.Conn, statement string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err, statement)
	lines, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		fields := make([]string, 0, len(row.RawValues()))
		for _, value := range row.RawValues() {
			fields = append(fields, string(value))
		}
		return strings.Join(fields, " | "), nil
	})
	require.NoError(t, err, statement)
	return lines
}

// compare fails unless the files below dir are what the rows ask for, and so many.
func compare(t *testing.T, db *exampletest.Database, dir string, count int) {
	t.Helper()
	found := files(t, dir)
	require.Empty(t, cmp.Diff(wanted(t, db), found), "rows (-) and files (+) differ")
	if len(found) != count { // require.Len would print every one of them
		t.Fatalf("there are %d files, not %d", len(found), count)
	}
}

// files returns the content of every file below dir, by path, but for the marks of whose directories they are.
func files(t *testing.T, dir string) map[string]any {
	t.Helper()
	found := map[string]any{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == ".reconciler-owner" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var content any
		name, _ := filepath.Rel(dir, path)
		if err := json.Unmarshal(text, &content); err != nil {
			return err
		}
		found[name] = content
		return nil
	}))
	return found
}

// wanted returns what the rows ask for, in the form of files.
func wanted(t *testing.T, db *exampletest.Database) map[string]any {
	t.Helper()
	var all map[string]any
	text := exampletest.Rows[string](t, db, `SELECT jsonb_object_agg(concat_ws('/', r.code, d.resource, d.key || '.json'), d.spec)::text
		FROM fleet.regions r JOIN (
			SELECT 'topology' AS resource, target, key, spec FROM reconciler.desired_topology WHERE running
			UNION ALL SELECT 'network_policy', target, key, spec FROM reconciler.desired_network_policy WHERE running
		) AS d ON d.target IS NULL OR d.target = r.code`)
	require.NoError(t, json.Unmarshal([]byte(text[0]), &all))
	return all
}
