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
)

// C52, C53, I10: replicas share the targets out; a rolling restart under load loses nothing.
func TestReplicasShareTargetsAndRestartWithoutLoss(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL)`)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 't' || i % 4, 'v0' FROM generate_series(1, 40) AS i`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)')`)
	places := map[string]*place{}
	for i := range 4 {
		places[fmt.Sprintf("t%d", i)] = newPlace()
	}
	start := func() *process {
		var targets []target
		for name, p := range places {
			targets = append(targets, named(name, p))
		}
		return w.start(targets...)
	}
	first := start()
	w.wait()
	second := start()
	w.settled("2", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	w.settled("2 2", `SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n FROM reconciler.targets GROUP BY owner) AS c`)

	// Changes go on while each replica is replaced.
	ctx, stop := context.WithCancel(context.Background())
	written := make(chan int, 1)
	conn := w.db.Conn(t)
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
	first.stop(t)
	w.settled("1", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	third := start()
	w.settled("2", `SELECT count(DISTINCT owner)::text FROM reconciler.targets`)
	second.stop(t)
	stop()
	require.Positive(t, <-written)
	w.wait()
	w.compare(places)
	third.stop(t)
	require.Equal(t, "true", w.text(`SELECT bool_and(clean AND owner IS NULL)::text FROM reconciler.targets`), "a clean stop leaves clean targets")
}

// compare checks every place against the rows.
func (w *world) compare(places map[string]*place) {
	w.t.Helper()
	for name, p := range places {
		rows, err := w.db.Pool.Query(context.Background(), `SELECT 'app/' || id, to_jsonb(image)::text FROM apps WHERE region = $1`, name)
		require.NoError(w.t, err)
		want := map[string]string{}
		for rows.Next() {
			var id, spec string
			require.NoError(w.t, rows.Scan(&id, &spec))
			want[id] = spec
		}
		require.NoError(w.t, rows.Err())
		have, _, _ := p.snapshot()
		require.Equal(w.t, want, have, violation+name)
	}
}

// C51: a target with other options is another place: everything is applied there.
func TestChangedOptionsApplyEverythingAgain(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 10)
	before, after := newPlace(), newPlace()
	p := w.start(named("eu", listing{before}))
	before.eventually(t, want)
	w.wait()
	p.stop(t)
	w.start(named("eu", listing{after}, func(c *config.Target) { c.Options = driver.Options{"dir": "elsewhere"} }))
	after.eventually(t, want)
	w.wait()
}

// C15, I12: a restored database is noticed, and every target is applied again and pruned.
func TestRestoredDatabaseIsNoticed(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]func(*place) driver.Driver{
		"WithListing": func(p *place) driver.Driver { return listing{p} }, "Without": func(p *place) driver.Driver { return p },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, want := fleet(t, 5)
			eu := newPlace()
			p := w.start(named("eu", drv(eu), quick))
			eu.eventually(t, want)
			w.wait()
			p.stop(t)
			// What a restore brings: older rows and ledger, in another database; the target is ahead of both.
			w.db.Exec(t, `UPDATE reconciler.installation SET database_oid = 1`)
			eu.put("app/1", `"from the lost future"`)
			term := w.text(`SELECT term::text FROM reconciler.targets WHERE name = 'eu'`)
			w.start(named("eu", drv(eu), quick))
			eu.eventually(t, want)
			w.wait()
			require.Equal(t, "1", w.text(`SELECT epoch::text FROM reconciler.installation`))
			require.NotEqual(t, term, w.text(`SELECT term::text FROM reconciler.targets WHERE name = 'eu'`))
			w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 2`)
			want["app/2"] = `"v2"`
			eu.eventually(t, want)
		})
	}
}

// F92: what lost commits had created goes where the target can list, and is told of where it cannot, until somebody has looked.
func TestF92_LostCommitsAreToldOf(t *testing.T) {
	t.Parallel()
	w, _ := fleet(t, 5)
	w.db.Exec(t, `INSERT INTO apps SELECT i, 'us', 'v1' FROM generate_series(11, 15) AS i`)
	eu, us := newPlace(), newPlace()
	p := w.start(named("eu", eu, quick), named("us", listing{us}, quick))
	w.converged()
	p.stop(t)
	w.db.Exec(t, `UPDATE reconciler.installation SET database_oid = 1`)
	eu.put("app/8", `"of a lost commit"`)
	us.put("app/18", `"of a lost commit"`)
	w.start(named("eu", eu, quick), named("us", listing{us}, quick))
	w.wait()
	const told = `SELECT coalesce(string_agg(finding, ' | '), '') FROM reconciler.doctor() WHERE NOT ok AND check_name = 'targets'`
	w.settled("1", `SELECT count(*)::text FROM reconciler.targets WHERE lost_at IS NOT NULL`)
	w.eventually("the sync of eu is over", func() bool { return w.text(told) != "" })
	require.Regexp(t, `^commits may have been lost when this database was restored or failed over at \S+ \S+, and what they had created in eu stays there: it cannot say what it has$`, w.text(told))
	require.Contains(t, eu.have(), "app/8")
	require.NotContains(t, us.have(), "app/18")
	eu.put("app/8", "")
	require.Equal(t, "eu was compared with the rows", w.text(`SELECT reconciler.acknowledge('eu')`))
	require.Equal(t, "there was nothing to acknowledge of us", w.text(`SELECT reconciler.acknowledge('us')`))
	require.Empty(t, w.text(told))
	w.converged()
}

// C21, C65, C67: the server restarts, and turns read-only and back, under a running process.
func TestServerRestartAndReadOnlyAreWaitedOut(t *testing.T) {
	t.Parallel()
	cluster := pgtest.Server(t)
	w := setupOn(t, cluster.New(t, apps...))
	want := w.fleet(5)
	eu := newPlace()
	w.start(named("eu", eu, quick))
	eu.eventually(t, want)
	w.wait()

	cluster.StopImmediate(t)
	cluster.Start(t)
	w.retry(`UPDATE apps SET image = 'v2' WHERE id = 1`)
	want["app/1"] = `"v2"`
	eu.eventually(t, want)

	w.retry(`ALTER SYSTEM SET default_transaction_read_only = on`)
	w.retry(`SELECT pg_reload_conf()`)
	w.settledRetry("on", `SHOW default_transaction_read_only`)
	w.retry(`ALTER SYSTEM RESET default_transaction_read_only`)
	w.retry(`SELECT pg_reload_conf()`)
	w.retry(`UPDATE apps SET image = 'v3' WHERE id = 1`)
	want["app/1"] = `"v3"`
	eu.eventually(t, want)
}

// retry runs SQL until it succeeds: the pool of the test has lost its connections too.
func (w *world) retry(sql string) {
	w.t.Helper()
	w.attempt(func(ctx context.Context) error {
		_, err := w.db.Pool.Exec(ctx, sql)
		return err
	})
}

func (w *world) settledRetry(want, sql string) {
	w.t.Helper()
	w.attempt(func(ctx context.Context) error {
		var have string
		if err := w.db.Pool.QueryRow(ctx, sql).Scan(&have); err != nil {
			return err
		}
		if have != want {
			return fmt.Errorf("%s: want %s, have %s", sql, want, have)
		}
		return nil
	})
}

func (w *world) attempt(try func(context.Context) error) {
	w.t.Helper()
	require.NoError(w.t, pgtest.Poll(context.Background(), deadline, func() error { return try(context.Background()) }))
}

// C33, C52, I10: an owner that is cut off from the database (its sessions end and it cannot come back) stops before
// another one begins, and loses nothing.
func TestOwnerThatIsCutOffIsTakenOver(t *testing.T) {
	t.Parallel()
	w, want := fleet(t, 20)
	eu := newPlace()
	role := w.db.Role(t, "cut", "SUPERUSER")
	w.startWith(func(c *config.Config) {
		c.DatabaseURL, c.DirectURL = config.NewURL(w.db.URLFor(role)), config.NewURL(w.db.URLFor(role))
	}, named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	eu.eventually(t, want)
	w.wait()
	w.start(named("eu", eu, func(c *config.Target) { c.Timeout = time.Second }))
	w.settled("2", `SELECT count(*)::text FROM reconciler.instances`)
	w.db.Exec(t, `ALTER ROLE `+role+` NOLOGIN`)
	w.db.Exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, role)
	w.db.Exec(t, `UPDATE apps SET image = 'v2' WHERE id = 7`)
	w.db.Exec(t, `DELETE FROM apps WHERE id = 8`)
	want = maps.Clone(want)
	want["app/7"] = `"v2"`
	delete(want, "app/8")
	eu.eventually(t, want)
	w.wait()
}
