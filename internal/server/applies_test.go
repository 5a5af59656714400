package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
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

func (w *world) apply(arguments, change string) {
	w.t.Helper()
	w.db.Exec(w.t, `BEGIN; SELECT reconciler.begin_apply(`+arguments+`); `+change+`; COMMIT`)
}

// C58: a rolling release: one target after the other, and none after the one that fails. What is held keeps what it has,
// also when something else about it changes.
func TestApplyRollsOverTheTargets(t *testing.T) {
	t.Parallel()
	w, asia, eu, us := regions(t)
	w.start(named("asia", asia), named("eu", eu), named("us", us))
	us.eventually(t, map[string]string{"app/3": `["v1", null]`})
	eu.eventually(t, map[string]string{"app/2": `["v1", null]`})
	asia.eventually(t, map[string]string{"app/1": `["v1", null]`})
	w.wait()
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
	w.start(named("asia", asia), named("eu", eu), named("us", us))
	us.eventually(t, map[string]string{"app/3": `["v1", null]`})
	eu.eventually(t, map[string]string{"app/2": `["v1", null]`})
	asia.eventually(t, map[string]string{"app/1": `["v1", null]`})
	w.wait()
	called, let := make(chan struct{}, 10), make(chan struct{})
	asia.set(func(ctx context.Context, _ call) driver.Outcome {
		called <- struct{}{}
		select {
		case <-let:
			return driver.Done()
		case <-ctx.Done():
			return driver.Backoff(ctx.Err())
		}
	})

	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	<-called
	w.db.Exec(t, `SELECT reconciler.apply_stop(1)`)
	require.Equal(t, "stopping", w.text(`SELECT state FROM reconciler.applies`))
	close(let)
	w.settled("stopped", `SELECT state FROM reconciler.applies`)
	asia.set(nil)
	_, calls, _ := eu.snapshot()
	require.Len(t, calls, 1)

	w.db.Exec(t, `SELECT reconciler.apply_start(1)`)
	w.settled("completed", `SELECT state FROM reconciler.applies`)
	us.eventually(t, map[string]string{"app/3": `["v2", null]`})
	w.converged()
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
	w.start(named("asia", asia), named("eu", eu), named("us", us))
	us.eventually(t, map[string]string{"app/3": `["v1", null]`})
	eu.eventually(t, map[string]string{"app/2": `["v1", null]`})
	asia.eventually(t, map[string]string{"app/1": `["v1", null]`})
	w.wait()
	eu.set(func(context.Context, call) driver.Outcome { return driver.RetryAfter(time.Hour, errors.New("not now")) })
	w.apply(`'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.settled("completed retrying waiting", `SELECT string_agg(phase, ' ' ORDER BY target) FROM reconciler.apply_targets`)
	w.settled("1", `SELECT attempts::text FROM reconciler.apply_tasks WHERE target = 'eu'`)

	eu.set(nil)
	w.db.Exec(t, `UPDATE reconciler.targets SET owner = NULL, lease_until = NULL, clean = false WHERE name = 'eu'`)
	w.settled("2", `SELECT term::text FROM reconciler.operations WHERE target = 'eu'`)
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
	stop, churned := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(churned)
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			w.db.Exec(t, fmt.Sprintf(`UPDATE apps SET note = %d WHERE id = %d`, n, n%objects+1))
			if n%20 == 0 {
				w.db.Exec(t, `SELECT reconciler.resync('*')`)
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
	<-churned
	w.settled("completed", `SELECT string_agg(DISTINCT state, ' ') FROM reconciler.applies`)
	w.converged()
}
