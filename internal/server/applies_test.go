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

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/metrics"
)

// regions is a world of three targets with one object each.
func regions(t *testing.T) (w *world, asia, eu, us *place) {
	t.Helper()
	w = setup(t)
	w.db.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text, note text)`)
	w.db.Exec(t, `INSERT INTO apps VALUES (1, 'asia', 'v1'), (2, 'eu', 'v1'), (3, 'us', 'v1')`)
	w.db.Exec(t, `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'jsonb_build_array(image, note)')`)
	return w, newPlace(), newPlace(), newPlace()
}

// startRegions starts a process with three targets, which get their objects.
func (w *world) startRegions(asia, eu, us *place) *process {
	w.t.Helper()
	server := w.start(named("asia", asia), named("eu", eu), named("us", us))
	us.eventually(w.t, map[string]string{"app/3": `["v1", null]`})
	eu.eventually(w.t, map[string]string{"app/2": `["v1", null]`})
	asia.eventually(w.t, map[string]string{"app/1": `["v1", null]`})
	w.wait()
	return server
}

func (w *world) apply(arguments, change string) {
	w.t.Helper()
	w.db.Exec(w.t, `BEGIN; SELECT reconciler.begin_apply(`+arguments+`); `+change+`; COMMIT`)
}

// C58: a rolling release: one target after the other, and none after the one that fails. What is held keeps what it has,
// also when something else about it changes.
func TestApplyRollsOverTheTargets(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.startRegions(asia, eu, us)
	eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(errors.New("no room")) })

	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.settled("failed", `SELECT state FROM reconciler.applies`)
	asia.eventually(t, map[string]string{"app/1": `["v2", null]`})
	w.settled("held gate", `SELECT state || ' ' || held_by FROM reconciler.objects WHERE target = 'us'`)
	require.Equal(t, "completed failed halted", w.text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "eu failed: 2: no room", w.text(`SELECT error FROM reconciler.apply_status`))

	w.db.Exec(t, `UPDATE apps SET note = 'hello' WHERE region = 'us'`)
	w.db.Exec(t, `SELECT reconciler.resync('us')`)
	w.settled("0", `SELECT count(*)::text FROM reconciler.outbox_lag WHERE revisions <> 0`)
	w.settled("0", `SELECT count(*)::text FROM reconciler.syncs WHERE state IN ('requested', 'running')`)
	_, calls, _ := us.snapshot()
	require.Len(t, calls, 1, "it keeps what it has")

	eu.set(nil)
	w.db.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	eu.eventually(t, map[string]string{"app/2": `["v2", null]`})
	us.eventually(t, map[string]string{"app/3": `["v2", "hello"]`})
	require.Equal(t, "0", w.text(`SELECT count(*)::text FROM reconciler.tasks WHERE governs`))
	w.converged()
}

// What is stopped does not go on until it is started; a call that is on its way ends.
func TestApplyStopsAndStarts(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.startRegions(asia, eu, us)
	begun, release := asia.hang(t, "app/1")
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	<-begun
	w.db.Exec(t, `SELECT reconciler.apply_stop(1)`)
	// When the owner has begun with what comes after, it has looked at what is to stop.
	w.apply(`'another', strategy => 'parallel'`, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	w.settled("completed", `SELECT state FROM reconciler.applies WHERE id = 2`)
	require.Equal(t, "stopping", w.text(`SELECT state FROM reconciler.applies WHERE id = 1`))
	release()
	w.settled("stopped", `SELECT state FROM reconciler.applies WHERE id = 1`)
	asia.set(nil)
	_, calls, _ := eu.snapshot()
	require.Len(t, calls, 1)

	w.db.Exec(t, `SELECT reconciler.apply_start(1)`)
	w.settled("completed", `SELECT state FROM reconciler.applies WHERE id = 1`)
	us.eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.converged()
}

// A person who holds an apply in an open transaction holds no target: everything else there goes on, and the apply does when
// the transaction has ended.
func TestApplyThatSomebodyHolds(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.startRegions(asia, eu, us)
	begun, release := asia.hang(t, "app/1")
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	<-begun
	person := w.begin()
	w.in(person, `SELECT reconciler.apply_pause(1)`)
	release()
	w.db.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	w.settled("applied applied", `SELECT string_agg(state::text, ' ' ORDER BY key) FROM reconciler.objects WHERE target = 'asia'`)
	w.settled("0", `SELECT count(*)::text FROM reconciler.outbox_lag WHERE target = 'asia' AND revisions <> 0`)
	require.Equal(t, "pending", w.text(`SELECT state FROM reconciler.apply_tasks WHERE target = 'asia'`))
	require.NoError(t, person.Rollback(t.Context()))
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.converged()
}

// Of an apply that is not open it is not known what it holds. What it has not changed goes on; the rest does when it is open.
func TestApplyThatIsNotOpenHoldsWhatItChanged(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.startRegions(asia, eu, us)
	w.db.Exec(t, `CREATE TABLE held (); CREATE SEQUENCE tries; CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN IF to_regclass('public.held') IS NOT NULL THEN PERFORM nextval('public.tries'); RAISE 'held' USING ERRCODE = 'lock_not_available'; END IF; RETURN new; END $$;
		CREATE TRIGGER hold BEFORE INSERT ON reconciler.operations FOR EACH ROW EXECUTE FUNCTION hold()`)
	w.apply(`'release 2', strategy => 'waves', waves => '[["us"]]'`, `UPDATE apps SET image = 'v2'`)
	w.db.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	both := map[string]string{"app/1": `["v1", null]`, "app/4": `["v1", null]`}
	asia.eventually(t, both)
	tried := w.text(`SELECT last_value::text FROM tries`)
	w.eventually("the leader has tried again and again", func() bool {
		return w.text(`SELECT (last_value > $1::bigint + 10)::text FROM tries`, tried) == "true"
	})
	asia.eventually(t, both)
	_, calls, _ := asia.snapshot()
	require.Len(t, calls, 2, "app/1 waits")
	require.Equal(t, "pending", w.text(`SELECT state FROM reconciler.applies WHERE opened_at IS NULL`))
	w.db.Exec(t, `DROP TABLE held`)
	asia.eventually(t, map[string]string{"app/1": `["v2", null]`, "app/4": `["v1", null]`})
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.converged()
}

// I6: what a gate lets go is counted before the first delete of it, like any other batch.
func TestApplyThatDeletesTooMuch(t *testing.T) {
	t.Parallel()
	for _, size := range []int{20, 700} { // tasks are read in pages of 500
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.db.Exec(t, fmt.Sprintf(`CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL);
				INSERT INTO apps SELECT n, CASE WHEN n = 0 THEN 'asia' ELSE 'eu' END FROM generate_series(0, %d) AS n;
				SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(id)')`, size))
			asia, eu := newPlace(), newPlace()
			w.start(named("asia", asia), named("eu", eu))
			eu.until(t, func(have map[string]string, _ []call) bool { return len(have) == size }, func() string { return "the first sync" })
			w.wait()
			w.apply(`'smaller'`, `UPDATE apps SET id = -1 WHERE id = 0; DELETE FROM apps WHERE id > 2`)
			w.settled(fmt.Sprint(size-2), `SELECT count(*)::text FROM reconciler.held WHERE target = 'eu' AND held_by = 'guard'`)
			require.Zero(t, eu.deletes())
			require.Equal(t, "running", w.text(`SELECT state FROM reconciler.apply_targets WHERE target = 'eu'`))
			w.db.Exec(t, `SELECT reconciler.approve('eu')`)
			w.settled("completed", `SELECT state FROM reconciler.applies`)
			require.Equal(t, 2, eu.size())
			w.converged()
		})
	}
}

// An apply of base tables of a joined resource: the leader finds its objects, and they belong to it.
func TestApplyOfBaseTables(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE images (name text PRIMARY KEY, tag text); CREATE TABLE apps (id int PRIMARY KEY, region text, image text);
		CREATE VIEW wanted AS SELECT a.id, a.region, a.image, i.tag FROM apps a JOIN images i ON i.name = a.image;
		INSERT INTO images VALUES ('web', 'v1'); INSERT INTO apps VALUES (1, 'eu', 'web'), (2, 'us', 'web');
		SELECT reconciler.track('app', 'wanted', '{id}', 'region', spec => 'to_jsonb(tag)', depends_on => '{"apps": {"id": "id"}, "images": {"name": "image"}}')`)
	eu, us := newPlace(), newPlace()
	w.start(named("eu", eu), named("us", us))
	eu.eventually(t, map[string]string{"app/1": `"v1"`})
	us.eventually(t, map[string]string{"app/2": `"v1"`})
	w.wait()
	eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.apply(`'release 2'`, `UPDATE images SET tag = 'v2'`)
	w.settled("failed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "failed halted", w.text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	us.eventually(t, map[string]string{"app/2": `"v1"`})
	w.db.Exec(t, `SELECT reconciler.apply_release(1)`)
	us.eventually(t, map[string]string{"app/2": `"v2"`})
	w.settled("0", `SELECT count(*)::text FROM reconciler.tasks WHERE governs`)
}

// C60: an owner that is lost in the middle of an operation: the next one goes on, and nothing is counted for that.
func TestApplyGoesOnWithTheNextOwner(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.start(named("asia", asia), named("eu", eu, quick), named("us", us))
	us.eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.wait()
	eu.set(func(context.Context, call) driver.Outcome { return driver.RetryAfter(time.Hour, errors.New("not now")) })
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.settled("completed retrying waiting", `SELECT string_agg(phase, ' ' ORDER BY target) FROM reconciler.apply_targets`)
	w.settled("1", `SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`)

	eu.set(nil)
	first := w.text(`SELECT term::text FROM reconciler.operations WHERE target = 'eu'`)
	w.db.Exec(t, `UPDATE reconciler.targets SET owner = NULL, clean = false WHERE name = 'eu'`)
	w.settled("1", `SELECT (term - `+first+`)::text FROM reconciler.operations WHERE target = 'eu'`)
	w.db.Exec(t, `SELECT reconciler.retry('eu')`) // its next attempt is in an hour, whoever owns the target
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, "1 1 1", w.text(`SELECT string_agg(claims::text, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "1", w.text(`SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`))
	us.eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.converged()
}

// C62, and what a gate is for: releases roll one after the other, some overtaking others, while everything else about the
// objects changes and targets are synced. No target gets a release before the targets before it have it.
func TestApplyHoldsWhateverElseChanges(t *testing.T) {
	t.Parallel()
	const objects, releases = 20, 6
	w := setup(t)
	w.db.Exec(t, `CREATE TABLE apps (region text, id int, release int NOT NULL DEFAULT 0, note int NOT NULL DEFAULT 0, PRIMARY KEY (region, id));
		INSERT INTO apps SELECT r, n FROM unnest('{asia,eu,us}'::text[]) AS r, generate_series(1, 20) AS n;
		SELECT reconciler.track('app', 'apps', '{region,id}', 'region', spec => 'jsonb_build_array(release, note)')`)
	places := []*place{newPlace(), newPlace(), newPlace()}
	release := func(spec string) (n int) {
		_, err := fmt.Sscanf(spec, "[%d,", &n)
		require.NoError(t, err)
		return n
	}
	lowest := func(p *place) int {
		objects, _, _ := p.snapshot()
		low := releases
		for _, spec := range objects {
			low = min(low, release(spec))
		}
		return low
	}
	w.start(named("asia", places[0]), named("eu", places[1]), named("us", places[2]))
	for _, p := range places {
		p.until(t, func(have map[string]string, _ []call) bool { return len(have) == objects }, func() string { return "the first sync" })
	}
	w.wait()
	for i, p := range places[1:] {
		p.set(func(_ context.Context, c call) driver.Outcome {
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
			if _, err := w.db.Pool.Exec(context.Background(), sql); err != nil {
				churned <- err
				return
			}
		}
	}()
	for n := 1; n <= releases; n++ {
		w.apply(fmt.Sprintf(`'release %d'`, n), fmt.Sprintf(`UPDATE apps SET release = %d`, n))
		if n%2 == 0 { // the others are overtaken
			w.settled("completed", fmt.Sprintf(`SELECT state FROM reconciler.applies WHERE title = 'release %d'`, n))
		}
	}
	close(stop)
	require.NoError(t, <-churned)
	w.settled("completed", `SELECT string_agg(DISTINCT state, ' ') FROM reconciler.applies`)
	w.converged()
}

// A resync as an apply: every object is applied again where nothing has changed, one target after the other, and a target
// that fails keeps the rest from it.
func TestApplyOfWhatIsThere(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.startRegions(asia, eu, us)
	made := func() (n [3]int) {
		for i, p := range []*place{asia, eu, us} {
			_, calls, _ := p.snapshot()
			n[i] = len(calls)
		}
		return n
	}
	require.Equal(t, [3]int{1, 1, 1}, made())

	eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.db.Exec(t, `SELECT reconciler.begin_resync('app', 'again')`)
	w.settled("failed", `SELECT state FROM reconciler.applies WHERE title = 'again'`)
	require.Equal(t, [3]int{2, 2, 1}, made())
	require.Equal(t, "completed failed halted", w.text(`SELECT string_agg(state, ' ' ORDER BY target) FROM reconciler.apply_targets`))
	require.Equal(t, "applied", w.text(`SELECT state::text FROM reconciler.objects WHERE target = 'us'`), "what has not changed is not held")

	eu.set(nil)
	w.db.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	require.Equal(t, [3]int{2, 3, 2}, made())

	w.db.Exec(t, `SELECT reconciler.begin_resync('app', targets => '{us}', keys => '{3}')`)
	w.settled("completed", `SELECT state FROM reconciler.applies WHERE title = 'resync of app'`)
	require.Equal(t, [3]int{2, 3, 3}, made())
	w.db.Exec(t, `UPDATE apps SET note = 'x'`)
	w.wait()
	require.Equal(t, [3]int{3, 4, 4}, made(), "once is enough")
	w.converged()
}

// Hooks: a target that apply_events is tracked for is called once for each end; whoever listens is told of each state.
func TestApplyEventsAreHooks(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.db.Exec(t, `SELECT reconciler.track('apply_event', 'reconciler.apply_events', '{id}', target => '''chat''', spec => 'jsonb_build_array(title, state, error)')`)
	chat := newPlace()
	listener := w.db.Conn(t)
	_, err := listener.Exec(t.Context(), "LISTEN reconciler_applies")
	require.NoError(t, err)
	w.start(named("asia", asia), named("eu", eu), named("us", us), named("chat", chat))
	us.eventually(t, map[string]string{"app/3": `["v1", null]`})
	eu.eventually(t, map[string]string{"app/2": `["v1", null]`})
	w.wait()
	eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.settled("failed", `SELECT state FROM reconciler.applies`)
	eu.set(nil)
	w.db.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	w.wait()

	_, calls, _ := chat.snapshot()
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
	require.Equal(t, w.text(`SELECT string_agg(state, ' ' ORDER BY id) FROM reconciler.apply_log WHERE what = 'state'`), strings.Join(states, " "))
}

// The series of applies follow a rollout, also in the process that leads next.
func TestApplySeriesFollowARollout(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	first := w.startRegions(asia, eu, us)
	require.Equal(t, map[string]float64{}, w.applySeries())
	eu.set(func(context.Context, call) driver.Outcome { return driver.Terminal(errors.New("no room")) })
	w.apply(`'release 2', on_failure => 'pause'`, `UPDATE apps SET image = 'v2'`)
	w.settled("paused", `SELECT state FROM reconciler.applies`)
	w.apply(`'of nothing'`, `SELECT 1`)
	w.eventually("the end of the second", func() bool { return w.series("applies_ended_total") == 1 })
	counted := map[string]float64{"applies paused": 1, "ended completed": 1, "asia completed": 1, "eu failed": 1}
	w.eventually("the leader counts the other, and no longer the second", func() bool { return maps.Equal(counted, w.applySeries()) })
	first.stop(t)
	require.Equal(t, map[string]float64{"ended completed": 1, "asia completed": 1, "eu failed": 1}, w.applySeries(), "it leads no more")

	w.start(named("asia", asia), named("eu", eu), named("us", us))
	w.eventually("the next leader counts it", func() bool { return w.series("applies", "paused") == 1 })
	w.db.Exec(t, `SELECT reconciler.apply_retry(1)`)
	w.eventually("eu fails again", func() bool { return w.series("apply_tasks_total", "eu", "failed") == 1 })
	w.db.Exec(t, `SELECT reconciler.apply_cancel(1)`)
	w.settled("failed", `SELECT state FROM reconciler.applies WHERE id = 1`)
	eu.set(nil)
	w.db.Exec(t, `BEGIN; SELECT reconciler.begin_apply('release 3'); UPDATE apps SET image = 'v3'; COMMIT`)
	w.settled("completed", `SELECT state FROM reconciler.applies WHERE title = 'release 3'`)
	w.eventually("both ends", func() bool { return w.series("applies_ended_total") == 2 })
	w.eventually("nothing is under way", func() bool { return w.series("applies") == 0 })
	require.Equal(t, map[string]float64{"ended failed": 1, "ended completed": 1, "eu failed": 1, "asia completed": 1, "eu completed": 1, "us completed": 1}, w.applySeries())
	w.converged()
}

// applySeries are the series of applies that are not 0.
func (w *world) applySeries() map[string]float64 {
	w.t.Helper()
	have := map[string]float64{}
	for _, state := range metrics.ApplyStates {
		have["applies "+state] = w.series("applies", state)
	}
	for _, state := range metrics.ApplyEnds {
		have["ended "+state] = w.series("applies_ended_total", state)
	}
	for _, target := range []string{"asia", "eu", "us"} {
		for _, state := range []string{"completed", "failed"} {
			have[target+" "+state] = w.series("apply_tasks_total", target, state)
		}
	}
	maps.DeleteFunc(have, func(_ string, n float64) bool { return n == 0 })
	return have
}

// Each target hears of its turn, and none of them polls for it.
func TestApplyTurnsAreHeardOf(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.steerEvery = time.Hour
	w.startRegions(asia, eu, us)
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
}
