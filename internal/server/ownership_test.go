package server_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// C52, C53, I10: replicas share the targets out; a rolling restart under load loses nothing.
func TestReplicasShareTargetsAndRestartWithoutLoss(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL)`)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 't' || i % 4, 'v0' FROM generate_series(1, 40) AS i`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	places := map[string]*servertest.Place{}
	for i := range 4 {
		places[fmt.Sprintf("t%d", i)] = servertest.NewPlace()
	}
	start := func() *servertest.Process {
		var targets []servertest.Target
		for name, p := range places {
			targets = append(targets, servertest.Named(name, p))
		}
		return w.Start(targets...)
	}
	first := start()
	w.Wait()
	second := start()
	w.Settled("2", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	w.Settled("2 2", `SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n FROM reconciler.targets GROUP BY owner) AS c`)

	// Changes go on while each replica is replaced.
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan int, 1)
	conn := w.DB.Conn(t)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if _, err := conn.Exec(context.Background(), `UPDATE apps SET image = $1 WHERE id = $2`, fmt.Sprintf("v%d", n), n%40+1); err != nil {
				t.Errorf("I8: a writer failed: %v", err)
				break
			}
		}
		written <- n
	}()
	first.Stop(t)
	w.Settled("1", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	third := start()
	w.Settled("2", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	second.Stop(t)
	stop()
	require.Positive(t, <-written)
	w.Wait()
	compare(w, places)
	w.Settled("true", `SELECT bool_and(clean)::text FROM reconciler.targets`) // each sync of a takeover is recorded
	third.Stop(t)
	require.Equal(t, "true", w.Text(`SELECT bool_and(clean AND owner IS NULL)::text FROM reconciler.targets`), "a clean stop leaves clean targets")
}

// compare checks every place against the rows.
func compare(w *servertest.World, places map[string]*servertest.Place) {
	w.T.Helper()
	for name, p := range places {
		rows, err := w.DB.Pool.Query(context.Background(), `SELECT 'app/' || id, to_jsonb(image)::text FROM apps WHERE region = $1`, name)
		require.NoError(w.T, err)
		want := map[string]string{}
		for rows.Next() {
			var id, spec string
			require.NoError(w.T, rows.Scan(&id, &spec))
			want[id] = spec
		}
		require.NoError(w.T, rows.Err())
		have, _, _ := p.Snapshot()
		require.Equal(w.T, want, have, servertest.Violation+name)
	}
}

// C51: a target with other options is another place: everything is applied there.
func TestChangedOptionsApplyEverythingAgain(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 10)
	before, after := servertest.NewPlace(), servertest.NewPlace()
	p := w.Start(servertest.Named("eu", servertest.Listing{Place: before}))
	before.Eventually(t, want)
	w.Wait()
	p.Stop(t)
	w.Start(servertest.Named("eu", servertest.Listing{Place: after}, func(c *config.Target) { c.Options = driver.Options{"dir": "elsewhere"} }))
	after.Eventually(t, want)
	w.Wait()
}

// C15, I12: a restored database is noticed, and every target is applied again and pruned.
func TestRestoredDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]func(*servertest.Place) driver.Driver{
		"WithListing": func(p *servertest.Place) driver.Driver { return servertest.Listing{Place: p} }, "Without": func(p *servertest.Place) driver.Driver { return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := servertest.Fleet(t, 5)
			eu := servertest.NewPlace()
			p := w.Start(servertest.Named("eu", drv(eu), servertest.Quick))
			eu.Eventually(t, want)
			w.Wait()
			p.Stop(t)
			// What a restore brings: older rows and ledger, in another database; the target is ahead of both.
			w.DB.Exec(t, `UPDATE reconciler.installation SET database_oid = 1`)
			eu.Put("app/1", `"from the lost future"`)
			term := w.Text(`SELECT term::text FROM reconciler.targets WHERE name = 'eu'`)
			w.Start(servertest.Named("eu", drv(eu), servertest.Quick))
			eu.Eventually(t, want)
			w.Wait()
			require.Equal(t, "1", w.Text(`SELECT epoch::text FROM reconciler.installation`))
			require.NotEqual(t, term, w.Text(`SELECT term::text FROM reconciler.targets WHERE name = 'eu'`))
			w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 2`)
			want["app/2"] = `"v2"`
			eu.Eventually(t, want)
		})
	}
}

// F92: what lost commits had created goes where the target can list, and is told of where it cannot, until somebody has looked.
func TestF92_LostCommitsAreToldOf(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 5)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'us', 'v1' FROM generate_series(11, 15) AS i`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	p := w.Start(servertest.Named("eu", eu, servertest.Quick), servertest.Named("us", servertest.Listing{Place: us}, servertest.Quick))
	w.Converged()
	p.Stop(t)
	w.DB.Exec(t, `UPDATE reconciler.installation SET database_oid = 1`)
	eu.Put("app/8", `"of a lost commit"`)
	us.Put("app/18", `"of a lost commit"`)
	w.Start(servertest.Named("eu", eu, servertest.Quick), servertest.Named("us", servertest.Listing{Place: us}, servertest.Quick))
	w.Wait()
	const told = `SELECT coalesce(string_agg(finding, ' | '), '') FROM reconciler.doctor() WHERE NOT ok AND check_name = 'targets'`
	w.Settled("1", `SELECT count(*)::text FROM reconciler.targets WHERE lost_at IS NOT NULL`)
	w.Eventually("the sync of eu is over", func() bool { return w.Text(told) != "" })
	require.Regexp(t, `^commits may have been lost when this database was restored or failed over at \S+ \S+, and what they had created in eu stays there: it cannot say what it has$`, w.Text(told))
	require.Contains(t, eu.Have(), "app/8")
	require.NotContains(t, us.Have(), "app/18")
	eu.Put("app/8", "")
	require.Equal(t, "eu was compared with the rows", w.Text(`SELECT reconciler.acknowledge('eu')`))
	require.Equal(t, "there was nothing to acknowledge of us", w.Text(`SELECT reconciler.acknowledge('us')`))
	require.Empty(t, w.Text(told))
	w.Converged()
}

// C21, C65, C67: the server restarts, and turns read-only and back, under a running process.
func TestServerRestartAndReadOnlyAreWaitedOut(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	w := servertest.NewOn(t, cluster.New(t, servertest.Apps...))
	want := w.Fleet(5)
	eu := servertest.NewPlace()
	w.Start(servertest.Named("eu", eu, servertest.Quick))
	eu.Eventually(t, want)
	w.Wait()

	cluster.StopImmediate(t)
	cluster.Start(t)
	retry(w, `UPDATE apps SET image = 'v2' WHERE id = 1`)
	want["app/1"] = `"v2"`
	eu.Eventually(t, want)

	retry(w, `ALTER SYSTEM SET default_transaction_read_only = on`)
	retry(w, `SELECT pg_reload_conf()`)
	settledRetry(w, "on", `SHOW default_transaction_read_only`)
	retry(w, `ALTER SYSTEM RESET default_transaction_read_only`)
	retry(w, `SELECT pg_reload_conf()`)
	retry(w, `UPDATE apps SET image = 'v3' WHERE id = 1`)
	want["app/1"] = `"v3"`
	eu.Eventually(t, want)
}

// retry runs SQL until it succeeds: the pool of the test has lost its connections too.
func retry(w *servertest.World, sql string) {
	w.T.Helper()
	attempt(w, func(ctx context.Context) error {
		_, err := w.DB.Pool.Exec(ctx, sql)
		return err
	})
}

func settledRetry(w *servertest.World, want, sql string) {
	w.T.Helper()
	attempt(w, func(ctx context.Context) error {
		var have string
		if err := w.DB.Pool.QueryRow(ctx, sql).Scan(&have); err != nil {
			return err
		}
		if have != want {
			return fmt.Errorf("%s: want %s, have %s", sql, want, have)
		}
		return nil
	})
}

func attempt(w *servertest.World, try func(context.Context) error) {
	w.T.Helper()
	require.NoError(w.T, pgtest.Poll(context.Background(), servertest.Deadline, func() error { return try(context.Background()) }))
}

// C33, C52, I10: an owner that is cut off from the database (its sessions end and it cannot come back) stops before
// another one begins, and loses nothing.
func TestOwnerThatIsCutOffIsTakenOver(t *testing.T) {
	t.Parallel()
	w, want := servertest.Fleet(t, 20)
	eu := servertest.NewPlace()
	role := w.DB.Role(t, "cut", "SUPERUSER")
	w.StartWith(func(c *config.Config) {
		c.DatabaseURL, c.DirectURL = config.NewURL(w.DB.URLFor(role)), config.NewURL(w.DB.URLFor(role))
	}, servertest.Named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	eu.Eventually(t, want)
	w.Wait()
	w.Start(servertest.Named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	w.Settled("2", `SELECT count(*)::text FROM reconciler.instances`)
	w.DB.Exec(t, `ALTER ROLE `+role+` NOLOGIN`)
	w.DB.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, role)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 7`)
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 8`)
	want = maps.Clone(want)
	want["app/7"] = `"v2"`
	delete(want, "app/8")
	eu.Eventually(t, want)
	w.Wait()
}
