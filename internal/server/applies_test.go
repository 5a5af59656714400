package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// regions is a world of three targets with one object each.
func regions(t *testing.T) (w *servertest.World, asia, eu, us *servertest.Place) {
	t.Helper()
	w = servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text, note text)`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'asia', 'v1'), (2, 'eu', 'v1'), (3, 'us', 'v1')`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'jsonb_build_array(image, note)')`)
	return w, servertest.NewPlace(), servertest.NewPlace(), servertest.NewPlace()
}

// startRegions starts a process with three targets, which get their objects.
func startRegions(w *servertest.World, asia, eu, us *servertest.Place) *servertest.Process {
	w.T.Helper()
	server := w.Start(servertest.Named("asia", asia), servertest.Named("eu", eu), servertest.Named("us", us))
	us.Eventually(w.T, map[string]string{"app/3": `["v1", null]`})
	eu.Eventually(w.T, map[string]string{"app/2": `["v1", null]`})
	asia.Eventually(w.T, map[string]string{"app/1": `["v1", null]`})
	w.Wait()
	return server
}

func apply(w *servertest.World, arguments, change string) {
	w.T.Helper()
	w.DB.Exec(w.T, `BEGIN; SELECT reconciler.begin_apply(`+arguments+`); `+change+`; COMMIT`)
}

// C58: a rolling release: one target after the other, and none after the one that fails. What is held keeps what it has,
// also when something else about it changes.
func TestApplyRollsOverTheTargets(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })

	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	asia.Eventually(t, map[string]string{"app/1": `["v2", null]`})
	w.Settled("held gate", `SELECT state || ' ' || held_by FROM reconciler.objects WHERE target = 'us'`)
	require.Equal(t, "completed failed halted", w.Text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "eu failed: 2: no room", w.Text(`SELECT error FROM reconciler.apply_status`))

	w.DB.Exec(t, `UPDATE apps SET note = 'hello' WHERE region = 'us'`)
	w.DB.Exec(t, `SELECT reconciler.resync('us')`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.outbox_lag WHERE revisions <> 0`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.syncs WHERE state IN ('requested', 'running')`)
	_, calls, _ := us.Snapshot()
	require.Len(t, calls, 1, "it keeps what it has")

	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	eu.Eventually(t, map[string]string{"app/2": `["v2", null]`})
	us.Eventually(t, map[string]string{"app/3": `["v2", "hello"]`})
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.tasks WHERE governs`))
	w.Converged()
}

// What is stopped does not go on until it is started; a call that is on its way ends.
func TestApplyStopsAndStarts(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	begun, release := asia.Hang(t, "app/1")
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	<-begun
	w.DB.Exec(t, `SELECT reconciler.apply_stop(1)`)
	// When the owner has begun with what comes after, it has looked at what is to stop.
	apply(w, `'another', strategy => 'parallel'`, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	w.Settled("completed", `SELECT state FROM reconciler.applies WHERE id = 2`)
	require.Equal(t, "stopping", w.Text(`SELECT state FROM reconciler.applies WHERE id = 1`))
	release()
	w.Settled("stopped", `SELECT state FROM reconciler.applies WHERE id = 1`)
	asia.Set(nil)
	_, calls, _ := eu.Snapshot()
	require.Len(t, calls, 1)

	w.DB.Exec(t, `SELECT reconciler.apply_start(1)`)
	w.Settled("completed", `SELECT state FROM reconciler.applies WHERE id = 1`)
	us.Eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.Converged()
}

// A person who holds an apply in an open transaction holds no target: everything else there goes on, and the apply does when
// the transaction has ended.
func TestApplyThatSomebodyHolds(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	begun, release := asia.Hang(t, "app/1")
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	<-begun
	person := w.Begin()
	w.In(person, `SELECT reconciler.apply_pause(1)`)
	release()
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	w.Settled("applied applied", `SELECT string_agg(state::text, ' ' ORDER BY key) FROM reconciler.objects WHERE target = 'asia'`)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.outbox_lag WHERE target = 'asia' AND revisions <> 0`)
	require.Equal(t, "pending", w.Text(`SELECT state FROM reconciler.apply_tasks WHERE target = 'asia'`))
	require.NoError(t, person.Rollback(t.Context()))
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Converged()
}

// Of an apply that is not open it is not known what it holds. What it has not changed goes on; the rest does when it is open.
func TestApplyThatIsNotOpenHoldsWhatItChanged(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	w.DB.Exec(t, `CREATE TABLE held (); CREATE SEQUENCE tries; CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF to_regclass('public.held') IS NOT NULL THEN PERFORM nextval('public.tries'); RAISE 'held' USING ERRCODE = 'lock_not_available'; END IF; RETURN new; END $$;
		CREATE TRIGGER hold BEFORE INSERT ON reconciler.operations FOR EACH ROW EXECUTE FUNCTION hold()`)
	apply(w, `'release 2', strategy => 'waves', waves => '[["us"]]'`, `UPDATE apps SET image = 'v2'`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	both := map[string]string{"app/1": `["v1", null]`, "app/4": `["v1", null]`}
	asia.Eventually(t, both)
	tried := w.Text(`SELECT last_value::text FROM tries`)
	w.Eventually("the leader has tried again and again", func() bool {
		return w.Text(`SELECT (last_value > $1::bigint + 10)::text FROM tries`, tried) == "true"
	})
	asia.Eventually(t, both)
	_, calls, _ := asia.Snapshot()
	require.Len(t, calls, 2, "app/1 waits")
	require.Equal(t, "pending", w.Text(`SELECT state FROM reconciler.applies WHERE opened_at IS NULL`))
	w.DB.Exec(t, `DROP TABLE held`)
	asia.Eventually(t, map[string]string{"app/1": `["v2", null]`, "app/4": `["v1", null]`})
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Converged()
}

// I6: what a gate lets go is counted before the first delete of it, like any other batch.
func TestApplyThatDeletesTooMuch(t *testing.T) {
	t.Parallel()
	for _, size := range []int{20, 700} { // tasks are read in pages of 500
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			w := servertest.New(t)
			w.DB.Exec(t, fmt.Sprintf(`CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL);
				INSERT INTO apps SELECT n, CASE WHEN n = 0 THEN 'asia' ELSE 'eu' END FROM generate_series(0, %d) AS n;
				SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(id)')`, size))
			asia, eu := servertest.NewPlace(), servertest.NewPlace()
			w.Start(servertest.Named("asia", asia), servertest.Named("eu", eu))
			eu.Until(t, func(have map[string]string, _ []servertest.Call) bool { return len(have) == size }, func() string { return "the first sync" })
			w.Wait()
			apply(w, `'smaller'`, `UPDATE apps SET id = -1 WHERE id = 0; DELETE FROM apps WHERE id > 2`)
			w.Settled(fmt.Sprint(size-2), `SELECT count(*)::text FROM reconciler.held WHERE target = 'eu' AND held_by = 'guard'`)
			require.Zero(t, eu.Deletes())
			require.Equal(t, "running", w.Text(`SELECT state FROM reconciler.apply_targets WHERE target = 'eu'`))
			w.DB.Exec(t, `SELECT reconciler.approve('eu')`)
			w.Settled("completed", `SELECT state FROM reconciler.applies`)
			require.Equal(t, 2, eu.Size())
			w.Converged()
		})
	}
}

// An apply of base tables of a joined resource: the leader finds its objects, and they belong to it.
func TestApplyOfBaseTables(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE images (name text PRIMARY KEY, tag text); CREATE TABLE apps (id int PRIMARY KEY, region text, image text);
		CREATE VIEW wanted AS SELECT a.id, a.region, a.image, i.tag FROM apps a JOIN images i ON i.name = a.image;
		INSERT INTO images VALUES ('web', 'v1'); INSERT INTO apps VALUES (1, 'eu', 'web'), (2, 'us', 'web');
		SELECT reconciler.track('app', 'wanted', '{id}', 'region', spec => 'to_jsonb(tag)', depends_on => '{"apps": {"id": "id"}, "images": {"name": "image"}}')`)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.Start(servertest.Named("eu", eu), servertest.Named("us", us))
	eu.Eventually(t, map[string]string{"app/1": `"v1"`})
	us.Eventually(t, map[string]string{"app/2": `"v1"`})
	w.Wait()
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	apply(w, `'release 2'`, `UPDATE images SET tag = 'v2'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "failed halted", w.Text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	us.Eventually(t, map[string]string{"app/2": `"v1"`})
	w.DB.Exec(t, `SELECT reconciler.apply_release(1)`)
	us.Eventually(t, map[string]string{"app/2": `"v2"`})
	w.Settled("0", `SELECT count(*)::text FROM reconciler.tasks WHERE governs AND state <> 'failed'`)
}

// C60: an owner that is lost in the middle of an operation: the next one goes on, and nothing is counted for that.
func TestApplyGoesOnWithTheNextOwner(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.Start(servertest.Named("asia", asia), servertest.Named("eu", eu, servertest.Quick), servertest.Named("us", us))
	us.Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	eu.Set(func(context.Context, servertest.Call) driver.Outcome {
		return driver.RetryAfter(time.Hour, errors.New("not now"))
	})
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("completed retrying waiting", `SELECT string_agg(phase, ' ' ORDER BY target) FROM reconciler.apply_targets`)
	w.Settled("1", `SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`)

	eu.Set(nil)
	first := w.Text(`SELECT term::text FROM reconciler.operations WHERE target = 'eu'`)
	w.DB.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false WHERE name = 'eu'`)
	w.Settled("1", `SELECT (term - `+first+`)::text FROM reconciler.operations WHERE target = 'eu'`)
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`) // its next attempt is in an hour, whoever owns the target
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "1 1 1", w.Text(`SELECT string_agg(claims::text, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "1", w.Text(`SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`))
	us.Eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.Converged()
}

// C62, and what a gate is for: releases roll one after the other, some overtaking others, while everything else about the
// objects changes and targets are synced. No target gets a release before the targets before it have it.
func TestApplyHoldsWhateverElseChanges(t *testing.T) {
	t.Parallel()
	const objects, releases = 20, 6
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (region text, id int, release int NOT NULL DEFAULT 0, note int NOT NULL DEFAULT 0, PRIMARY KEY (region, id));
		INSERT INTO apps SELECT r, n FROM unnest('{asia,eu,us}'::text[]) AS r, generate_series(1, 20) AS n;
		SELECT reconciler.track('app', 'apps', '{region,id}', 'region', spec => 'jsonb_build_array(release, note)')`)
	places := []*servertest.Place{servertest.NewPlace(), servertest.NewPlace(), servertest.NewPlace()}
	release := func(spec string) (n int) {
		_, err := fmt.Sscanf(spec, "[%d,", &n)
		require.NoError(t, err)
		return n
	}
	lowest := func(p *servertest.Place) int {
		objects, _, _ := p.Snapshot()
		low := releases
		for _, spec := range objects {
			low = min(low, release(spec))
		}
		return low
	}
	w.Start(servertest.Named("asia", places[0]), servertest.Named("eu", places[1]), servertest.Named("us", places[2]))
	for _, p := range places {
		p.Until(t, func(have map[string]string, _ []servertest.Call) bool { return len(have) == objects }, func() string { return "the first sync" })
	}
	w.Wait()
	for i, p := range places[1:] {
		p.Set(func(_ context.Context, c servertest.Call) driver.Outcome {
			if c.Action == "apply" && release(c.Spec) > lowest(places[i]) {
				t.Errorf("%s gets release %d, and the target before it has %d", c.Key, release(c.Spec), lowest(places[i]))
			}
			return driver.Done()
		})
	}
	stop, churned := make(chan struct{}), make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				churned <- nil
				return
			default:
			}
			sql := fmt.Sprintf(`UPDATE apps SET note = %d WHERE id = %d`, n, n%objects+1)
			if n%20 == 0 {
				sql += `; SELECT reconciler.resync('*')`
			}
			if _, err := w.DB.Pool.Exec(context.Background(), sql); err != nil {
				churned <- err
				return
			}
		}
	}()
	for n := 1; n <= releases; n++ {
		apply(w, fmt.Sprintf(`'release %d'`, n), fmt.Sprintf(`UPDATE apps SET release = %d`, n))
		if n%2 == 0 { // the others are overtaken
			w.Settled("completed", fmt.Sprintf(`SELECT state FROM reconciler.applies WHERE title = 'release %d'`, n))
		}
	}
	close(stop)
	require.NoError(t, <-churned)
	w.Settled("0", `SELECT count(*)::text FROM reconciler.applies WHERE state NOT IN ('completed', 'superseded')`)
	w.Converged()
}

// A resync as an apply: every object is applied again where nothing has changed, one target after the other, and a target
// that fails keeps the rest from it.
func TestApplyOfWhatIsThere(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us)
	made := func() (n [3]int) {
		for i, p := range []*servertest.Place{asia, eu, us} {
			_, calls, _ := p.Snapshot()
			n[i] = len(calls)
		}
		return n
	}
	require.Equal(t, [3]int{1, 1, 1}, made())

	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.DB.Exec(t, `SELECT reconciler.begin_resync('app', 'again')`)
	w.Settled("failed", `SELECT state FROM reconciler.applies WHERE title = 'again'`)
	require.Equal(t, [3]int{2, 2, 1}, made())
	require.Equal(t, "completed failed halted", w.Text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	w.Settled("applied", `SELECT state::text FROM reconciler.objects WHERE target = 'us'`) // what has not changed is not held

	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, [3]int{2, 3, 2}, made())

	w.DB.Exec(t, `SELECT reconciler.begin_resync('app', targets => '{us}', keys => '{3}')`)
	w.Settled("completed", `SELECT state FROM reconciler.applies WHERE title = 'resync of app'`)
	require.Equal(t, [3]int{2, 3, 3}, made())
	w.DB.Exec(t, `UPDATE apps SET note = 'x'`)
	w.Wait()
	require.Equal(t, [3]int{3, 4, 4}, made(), "once is enough")
	w.Converged()
}

// Hooks: a target that apply_events is tracked for is called once for each end; whoever listens is told of each state.
func TestApplyEventsAreHooks(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.DB.Exec(t, `SELECT reconciler.track('apply_event', 'reconciler.apply_events', '{id}', target => '''chat''', spec => 'jsonb_build_array(title, state, error)')`)
	chat := servertest.NewPlace()
	listener := w.DB.Conn(t)
	_, err := listener.Exec(t.Context(), "LISTEN reconciler_applies")
	require.NoError(t, err)
	w.Start(servertest.Named("asia", asia), servertest.Named("eu", eu), servertest.Named("us", us), servertest.Named("chat", chat))
	us.Eventually(t, map[string]string{"app/3": `["v1", null]`})
	eu.Eventually(t, map[string]string{"app/2": `["v1", null]`})
	w.Wait()
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	eu.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Wait()

	_, calls, _ := chat.Snapshot()
	var told []string
	for _, c := range calls {
		told = append(told, c.Action+" "+c.Spec)
	}
	require.Equal(t, []string{`apply ["release 2", "failed", "eu failed: 2: no room"]`, `apply ["release 2", "completed", null]`}, told)
	var states []string
	for len(states) == 0 || states[len(states)-1] != "completed" {
		n, err := listener.WaitForNotification(t.Context())
		require.NoError(t, err)
		var payload struct {
			Apply      int
			Was, State string
		}
		require.NoError(t, json.Unmarshal([]byte(n.Payload), &payload))
		require.Equal(t, 1, payload.Apply)
		states = append(states, payload.State)
	}
	require.Contains(t, states, "failed")
	require.Equal(t, w.Text(`SELECT string_agg(state, ' ' ORDER BY id) FROM reconciler.apply_log WHERE what = 'state'`), strings.Join(states, " "))
}

// The series of applies follow a rollout, also in the process that leads next.
func TestApplySeriesFollowARollout(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	first := startRegions(w, asia, eu, us)
	require.Equal(t, map[string]float64{}, applySeries(w))
	eu.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	apply(w, `'release 2', on_failure => 'pause'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("paused", `SELECT state FROM reconciler.applies`)
	apply(w, `'of nothing'`, `SELECT 1`)
	w.Eventually("the end of the second", func() bool { return w.Series("applies_ended_total") == 1 })
	counted := map[string]float64{"applies paused": 1, "ended completed": 1, "asia completed": 1, "eu failed": 1}
	w.Eventually("the leader counts the other, and no longer the second", func() bool { return maps.Equal(counted, applySeries(w)) })
	first.Stop(t)
	require.Equal(t, map[string]float64{"ended completed": 1, "asia completed": 1, "eu failed": 1}, applySeries(w), "it leads no more")

	w.Start(servertest.Named("asia", asia), servertest.Named("eu", eu), servertest.Named("us", us))
	w.Eventually("the next leader counts it", func() bool { return w.Series("applies", "paused") == 1 })
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.Eventually("eu fails again", func() bool { return w.Series("apply_tasks_total", "eu", "failed") == 1 })
	w.DB.Exec(t, `SELECT reconciler.apply_cancel(1)`)
	w.Settled("failed", `SELECT state FROM reconciler.applies WHERE id = 1`)
	eu.Set(nil)
	w.DB.Exec(t, `BEGIN; SELECT reconciler.begin_apply('release 3'); UPDATE apps SET image = 'v3'; COMMIT`)
	w.Settled("completed", `SELECT state FROM reconciler.applies WHERE title = 'release 3'`)
	w.Eventually("both ends", func() bool { return w.Series("applies_ended_total") == 2 })
	w.Eventually("nothing is under way", func() bool { return w.Series("applies") == 0 })
	require.Equal(t, map[string]float64{"ended failed": 1, "ended completed": 1, "eu failed": 1, "asia completed": 1, "eu completed": 1, "us completed": 1}, applySeries(w))
	w.Converged()
}

// applySeries are the series of applies that are not 0.
func applySeries(w *servertest.World) map[string]float64 {
	w.T.Helper()
	have := map[string]float64{}
	for _, state := range metrics.ApplyStates {
		have["applies "+state] = w.Series("applies", state)
	}
	for _, state := range metrics.ApplyEnds {
		have["ended "+state] = w.Series("applies_ended_total", state)
	}
	for _, target := range []string{"asia", "eu", "us"} {
		for _, state := range []string{"completed", "failed"} {
			have[target+" "+state] = w.Series("apply_tasks_total", target, state)
		}
	}
	maps.DeleteFunc(have, func(_ string, n float64) bool { return n == 0 })
	return have
}

// Each target hears of its turn, and none of them polls for it.
func TestApplyTurnsAreHeardOf(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.SteerEvery = time.Hour
	startRegions(w, asia, eu, us)
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
}

// A rollout of rows that name no target concerns each target, also those whose process is away: what it halts does not reach
// them when their process starts.
func TestF13_HaltedReleaseReachesNoTargetWhoseProcessWasAway(t *testing.T) {
	t.Parallel()
	w := servertest.New(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, image text)`)
	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'v1')`)
	w.DB.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'NULL', spec => 'to_jsonb(image)')`)
	asia, eu := servertest.NewPlace(), servertest.NewPlace()
	v1, v2 := map[string]string{"app/1": `"v1"`}, map[string]string{"app/1": `"v2"`}
	w.Start(servertest.Named("asia", asia))
	asia.Eventually(t, v1)
	away := w.Start(servertest.Named("eu", eu))
	eu.Eventually(t, v1)
	w.Wait()
	away.Stop(t)
	w.Beats(3)

	asia.Set(func(context.Context, servertest.Call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Settled("failed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "asia failed, eu halted", w.Text(`SELECT string_agg(target || ' ' || state, ', ' ORDER BY target) FROM reconciler.apply_targets`))
	w.Start(servertest.Named("eu", eu))
	w.Settled("held gate", `SELECT state || ' ' || held_by FROM reconciler.objects WHERE target = 'eu'`)
	require.Equal(t, v1, eu.Have())

	asia.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.Settled("completed", `SELECT state FROM reconciler.applies WHERE id = 1`)
	asia.Eventually(t, v2)
	eu.Eventually(t, v2)
	w.Converged()
}

// A rollout that applies again what is there waits for a target whose process is away.
func TestF13_ResyncConcernsTargetsWhoseProcessIsAway(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	startRegions(w, asia, eu, us).Stop(t)
	w.StartWith(func(c *config.Config) { c.File = "other.yaml" }, servertest.Named("asia", asia))
	w.Settled("asia", `SELECT string_agg(target, ' ') FROM reconciler.status WHERE state = 'ok'`)
	w.Beats(3)
	w.DB.Exec(t, `SELECT reconciler.begin_resync('app')`)
	w.Settled("completed pending pending", `SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`)
	require.Equal(t, "asia completed, eu next, us waiting", w.Text(`SELECT string_agg(target || ' ' || phase, ', ' ORDER BY target) FROM reconciler.apply_targets`))
}
