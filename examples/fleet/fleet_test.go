package fleet_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples"
	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// empty returns a database with the example's schema and no rows.
func empty(t *testing.T, settings map[string]string) *exampletest.Database {
	t.Helper()
	return exampletest.New(t, pgtest.New(t).URL, fleet(t), settings)
}

func filled(t *testing.T, settings map[string]string) *exampletest.Database {
	t.Helper()
	db := empty(t, settings)
	require.NoError(t, fleet(t).Fill(t.Context(), db.SQL))
	return db
}

func fleet(t *testing.T) examples.Example {
	t.Helper()
	e, err := examples.Find("fleet")
	require.NoError(t, err)
	return e
}

// small has one workspace, ten apps and twenty environments.
var small = map[string]string{"fleet.live": "20", "fleet.historical": "100", "fleet.policies": "30"}

func TestTrackingGivesNoAdvice(t *testing.T) {
	t.Parallel()
	db := empty(t, nil)
	require.Empty(t, db.Messages())
	require.Equal(t, []string{"network_policy", "topology"}, exampletest.Rows[string](t, db, "SELECT name FROM reconciler.resources ORDER BY 1"))
	require.Empty(t, exampletest.Rows[string](t, db, "SELECT problem FROM reconciler.capture_problems()"))
}

func TestSeed(t *testing.T) {
	t.Parallel()

	t.Run("HasTheFleetThatItPromises", func(t *testing.T) {
		t.Parallel()
		server := pgtest.New(t)
		db := exampletest.New(t, server.URL, fleet(t), nil)
		require.NoError(t, fleet(t).Fill(t.Context(), db.SQL))
		for query, want := range map[string][]string{
			"SELECT count(*)::text FROM fleet.workspaces":                                                               {"50"},
			"SELECT count(*)::text FROM fleet.apps":                                                                     {"500"},
			"SELECT count(*)::text FROM fleet.environments":                                                             {"1000"},
			"SELECT count(*)::text FROM fleet.deployments":                                                              {"101000"},
			"SELECT count(*)::text FROM fleet.topologies":                                                               {"103000"},
			"SELECT count(*)::text FROM fleet.network_policies":                                                         {"200"},
			"SELECT count(DISTINCT deployment_id)::text FROM fleet.topologies WHERE desired_status = 'running'":         {"1000"},
			"SELECT concat_ws(' ', target, count(*)) FROM reconciler.desired_topology WHERE running GROUP BY target":    {"ap-south 1000", "eu-west 1000", "us-east 1000"},
			"SELECT concat_ws(' ', target, count(*)) FROM reconciler.desired_network_policy GROUP BY target ORDER BY 1": {"20", "ap-south 60", "eu-west 60", "us-east 60"},
			// The newest deployment of each environment is the live one.
			"SELECT count(*)::text FROM (SELECT DISTINCT ON (environment_id) id FROM fleet.deployments ORDER BY environment_id, id DESC) AS d " +
				"JOIN fleet.topologies t ON t.deployment_id = d.id AND t.desired_status = 'running'": {"3000"},
		} {
			require.ElementsMatch(t, want, exampletest.Rows[string](t, db, query), query)
		}
		require.Empty(t, db.Messages())
		require.Empty(t, exampletest.Rows[string](t, db, "SELECT problem FROM reconciler.capture_problems()"))
		walksItsIndex(t, server.URL)
	})

	t.Run("IsTheSameEachTime", func(t *testing.T) {
		t.Parallel()
		content := func() []string {
			db := filled(t, small)
			return exampletest.Rows[string](t, db, "SELECT concat_ws(' ', target, key, running, spec) FROM reconciler.desired_topology "+
				"UNION ALL SELECT concat_ws(' ', target, key, spec) FROM reconciler.desired_network_policy ORDER BY 1")
		}
		first := content()
		require.Len(t, first, 3*20+100+30)
		require.Equal(t, first, content())
	})

	t.Run("AddsNothingTwice", func(t *testing.T) {
		t.Parallel()
		db := filled(t, small)
		require.NoError(t, fleet(t).Fill(t.Context(), db.SQL))
		require.Equal(t, []string{"NOTICE: fleet has rows already: nothing was added"}, db.Messages())
		require.Equal(t, []int64{160}, exampletest.Rows[int64](t, db, "SELECT count(*) FROM fleet.topologies"))
	})

	t.Run("HasTheWholeResourceLookedAt", func(t *testing.T) {
		t.Parallel()
		db := empty(t, small)
		recorded := watch(t, db)
		require.NoError(t, fleet(t).Fill(t.Context(), db.SQL))
		require.Contains(t, recorded(), "topology everywhere")
		// Capture is on again.
		db.Exec(t, "UPDATE fleet.topologies SET replicas = 9 WHERE id = 101")
		require.Equal(t, []string{`topology fleet.topologies {"id": 101}`}, recorded())
	})
}

// walksItsIndex reads a page as a sync does and looks at the plan that PostgreSQL took.
func walksItsIndex(t *testing.T, url string) {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	var plan strings.Builder
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plan.WriteString(n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(t.Context())) }()
	_, err = conn.Exec(t.Context(), "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_level = 'notice'")
	require.NoError(t, err)
	var catalog desired.Catalog
	_, err = catalog.Reload(t.Context(), conn)
	require.NoError(t, err)

	for resource, test := range map[string]struct {
		after []string
		rows  int64
		table string
		index string
		set   string
	}{
		// The last 500 of region us-east.
		"topology": {[]string{"101500"}, 500, "topologies", "topologies_running", "on"},
		// 200 rows are four pages of the table: PostgreSQL reads them all unless it is told not to, and for so few the
		// primary key is as good as the index of the region.
		"network_policy": {[]string{"policy-0150"}, 20, "network_policies", "Index Scan using network_policies_", "off"},
	} {
		r, ok := catalog.ByName(resource)
		require.True(t, ok)
		_, err := conn.Exec(t.Context(), "SET enable_seqscan = "+test.set)
		require.NoError(t, err)
		plan.Reset()
		page, err := r.Page(t.Context(), conn, "us-east", 1, test.after, 1000, false)
		require.NoError(t, err)
		require.Equal(t, test.rows, page.Rows, resource)
		require.Len(t, page.Differ, int(test.rows), resource)
		require.Contains(t, plan.String(), test.index, resource)
		require.NotContains(t, plan.String(), "Seq Scan on "+test.table, resource)
	}
}

func TestChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		write string
		want  []string
	}{
		"OfObservedColumnsSaysNothing": {
			write: "UPDATE fleet.topologies SET status = 'ready', ready_replicas = 2, heartbeat_at = now();" +
				"UPDATE fleet.network_policies SET packets = packets + 1",
		},
		"OfANameThatNoTopologyShowsSaysNothing": {write: "UPDATE fleet.workspaces SET name = 'Acme'; UPDATE fleet.regions SET name = 'Eire'"},
		"OfADeployment":                         {"UPDATE fleet.deployments SET image = 'x' WHERE id = 105", []string{`topology fleet.deployments {"deployment_id": 105}`}},
		"OfATopology":                           {"UPDATE fleet.topologies SET desired_status = 'stopped' WHERE id = 101", []string{`topology fleet.topologies {"id": 101}`}},
		"OfAnEnvironment":                       {`UPDATE fleet.environments SET variables = '{"A": "1"}' WHERE id = 7`, []string{`topology fleet.environments {"environment_id": 7}`}},
		"OfAnApp":                               {"UPDATE fleet.apps SET slug = 'x' WHERE id = 3", []string{`topology fleet.apps {"app_id": 3}`}},
		"OfAWorkspace":                          {"UPDATE fleet.workspaces SET slug = 'acme'", []string{`topology fleet.workspaces {"workspace_id": 1}`}},
		"OfARegion":                             {"UPDATE fleet.regions SET active = false WHERE code = 'ap-south'", []string{`topology fleet.regions {"region": "ap-south"}`}},
		"OfAPolicy":                             {"UPDATE fleet.network_policies SET port = 1 WHERE name = 'policy-0001'", []string{"network_policy us-east policy-0001"}},
		"OfAPolicyForEveryRegion":               {"DELETE FROM fleet.network_policies WHERE name = 'policy-0010'", []string{"network_policy everywhere policy-0010"}},
		"OfAPolicysRegion": {
			"UPDATE fleet.network_policies SET region = NULL WHERE name = 'policy-0001'",
			[]string{"network_policy us-east policy-0001", "network_policy everywhere policy-0001"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := filled(t, small)
			recorded := watch(t, db)
			db.Exec(t, test.write)
			require.ElementsMatch(t, test.want, recorded())
		})
	}
}

// watch returns a function that lists what the outbox has got since it was last called.
func watch(t *testing.T, db *exampletest.Database) func() []string {
	t.Helper()
	seen := exampletest.Rows[int64](t, db, "SELECT last_value FROM reconciler.outbox_seq")
	return func() []string {
		lines := exampletest.Rows[string](t, db, `SELECT concat_ws(' ', r.name, d.relation::text, o.image::text, CASE WHEN d.id IS NULL THEN coalesce(o.target, 'everywhere') END, o.key)
			FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id LEFT JOIN reconciler.dependencies d ON d.id = o.dependency_id
			WHERE o.seq > $1 ORDER BY o.seq`, seen[0])
		seen = exampletest.Rows[int64](t, db, "SELECT last_value FROM reconciler.outbox_seq")
		return lines
	}
}

func TestChangeReachesEveryDependentTopology(t *testing.T) {
	t.Parallel()
	db := filled(t, small)
	for image, want := range map[string]int64{
		`{"id": 101}`:            1,
		`{"deployment_id": 105}`: 3,  // one in each region
		`{"environment_id": 7}`:  3,  // one live deployment
		`{"app_id": 3}`:          6,  // two environments
		`{"workspace_id": 1}`:    60, // all
		`{"region": "ap-south"}`: 20,
	} {
		require.Equal(t, []int64{want}, exampletest.Rows[int64](t, db, "SELECT count(*) FROM reconciler.desired_topology WHERE running AND match @> $1", image), image)
	}
}

func TestSpecIsJoinedFromSixTables(t *testing.T) {
	t.Parallel()
	db := filled(t, small)
	spec := func() string {
		return strings.Join(exampletest.Rows[string](t, db, "SELECT spec::text FROM reconciler.desired_topology WHERE target = 'eu-west' AND key = '101' AND running"), "\n")
	}
	require.JSONEq(t, `{
		"workspace": "ws-001", "app": "web", "environment": "production", "image": "registry.example/web:1.5", "command": ["/bin/web", "serve"],
		"env": {"APP_ENV": "production", "LOG_LEVEL": "info", "PORT": "8001"}, "replicas": 3, "resources": {"cpu": "500m", "memory": "1536Mi"}
	}`, spec())
	before := spec()
	for _, change := range []string{
		"UPDATE fleet.workspaces SET suspended = true",
		"UPDATE fleet.regions SET active = false",
		"UPDATE fleet.topologies SET desired_status = 'stopped'",
	} {
		db.Exec(t, change)
		require.Empty(t, spec(), change)
		db.Exec(t, strings.NewReplacer("true", "false", "false", "true", "stopped", "running").Replace(change))
		require.Equal(t, before, spec(), change)
	}
}

func TestMigrationsGoDownAndUpAgain(t *testing.T) {
	t.Parallel()
	db := filled(t, small)
	e := fleet(t)
	require.NoError(t, e.Down(t.Context(), db.SQL))
	require.Equal(t, []bool{false, false}, exampletest.Rows[bool](t, db, "VALUES (to_regnamespace('fleet') IS NOT NULL), (to_regclass('fleet_goose_version') IS NOT NULL)"))
	require.Empty(t, exampletest.Rows[string](t, db, "SELECT name FROM reconciler.resources"))
	require.Empty(t, exampletest.Rows[string](t, db, `SELECT proname::text FROM pg_proc WHERE proname ~ '^capture_\d'
		UNION ALL SELECT relname::text FROM pg_class WHERE relname ~ '^desired_' UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgname ~ '^reconciler_'`))
	require.NoError(t, e.Up(t.Context(), db.SQL))
	require.NoError(t, e.Fill(t.Context(), db.SQL))
	require.Equal(t, []int64{60}, exampletest.Rows[int64](t, db, "SELECT count(*) FROM reconciler.desired_topology WHERE running"))
}
