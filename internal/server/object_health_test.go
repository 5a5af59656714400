package server_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// ward is a place that can say of each object whether it is healthy. Tests say what it says; by itself it says that all are.
type ward struct {
	*servertest.Place

	mu   sync.Mutex                                                    // guards what follows
	says map[string]func(context.Context) (driver.ObjectHealth, error) // by key
	asks map[string]int                                                // by key
	refs map[string]driver.Ref                                         // the last, by key
	now  int                                                           // questions under way
	most int                                                           // at once, so far
}

func newWard(p *servertest.Place) *ward {
	return &ward{Place: p, says: map[string]func(context.Context) (driver.ObjectHealth, error){}, asks: map[string]int{}, refs: map[string]driver.Ref{}}
}

func (p *ward) Health(context.Context) error { return errors.New("the target as a whole is asked") }

func (p *ward) ObjectHealth(ctx context.Context, ref driver.Ref) (driver.ObjectHealth, error) {
	p.mu.Lock()
	p.asks[ref.Key]++
	p.refs[ref.Key] = ref
	p.now++
	p.most = max(p.most, p.now)
	says := p.says[ref.Key]
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.now--
	}()
	if says == nil {
		return driver.ObjectHealth{State: driver.Healthy}, nil
	}
	return says(ctx)
}

// is has an object answer from now on; nil: it is healthy.
func (p *ward) is(key string, says func(context.Context) (driver.ObjectHealth, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says[key] = says
}

func (p *ward) asked() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.asks)
}

func state(state driver.HealthState, reason string) func(context.Context) (driver.ObjectHealth, error) {
	return func(context.Context) (driver.ObjectHealth, error) {
		return driver.ObjectHealth{State: state, Reason: reason}, nil
	}
}

// wards is a world of three targets, of which the first reports the health of its objects.
func wards(t *testing.T) (w *servertest.World, asia *ward, all []servertest.Target) {
	t.Helper()
	w, place, eu, us := regions(t)
	asia = newWard(place)
	return w, asia, []servertest.Target{servertest.Named("asia", asia, func(c *config.Target) { c.Timeout = 2 * time.Second }), servertest.Named("eu", eu), servertest.Named("us", us)}
}

const health = `SELECT coalesce(string_agg(concat_ws(' ', target, resource, key, state, reason), ', ' ORDER BY target, resource, key), 'all healthy') FROM reconciler.health`

// C58: the next target starts when the objects of the apply are healthy, whatever else the target has.
func TestApplyWaitsForItsOwnObjects(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1'), (5, 'asia', 'v1')`)
	w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	require.Empty(t, asia.asked(), "nobody waits for it")
	asia.is("4", state(driver.Unhealthy, "crashed"))
	asia.is("1", state(driver.Progressing, "2 of 5 are ready"))
	asia.is("5", state(driver.Unhealthy, "no image"))
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2' WHERE id <> 4`)
	w.Settled("waiting for asia: not healthy: app 1: 2 of 5 are ready", euWaits)
	w.Settled("asia app 1 progressing 2 of 5 are ready, asia app 5 unhealthy no image", health)
	asia.is("1", nil)
	w.Settled("waiting for asia: not healthy: app 5: no image", euWaits)
	w.Settled("asia app 5 unhealthy no image", health)
	first := asia.asked()["1"]
	for unknown, says := range map[string]func(context.Context) (driver.ObjectHealth, error){
		"the driver panicked: oh": func(context.Context) (driver.ObjectHealth, error) { panic("oh") },
		"timed out after 2s": func(ctx context.Context) (driver.ObjectHealth, error) {
			<-ctx.Done()
			return driver.ObjectHealth{}, context.Cause(ctx)
		},
		"the driver gave no reason": func(context.Context) (driver.ObjectHealth, error) {
			return driver.ObjectHealth{State: driver.Healthy}, errors.New("")
		},
		`the driver returned the state "better"`: state("better", ""),
	} {
		asia.is("5", says)
		w.Settled("waiting for asia: not healthy: app 5: not known: "+unknown, euWaits)
		w.Settled("asia app 5 unknown not known: "+unknown, health)
	}
	require.Equal(t, first, asia.asked()["1"], "it is healthy")
	objects, _, _ := w.Places["eu"].Snapshot()
	require.Equal(t, map[string]string{"app/2": `["v1", null]`}, objects)
	asia.is("5", nil)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Settled("all healthy", health)
	w.Converged()
	require.NotContains(t, asia.asked(), "4")
	asia.mu.Lock()
	defer asia.mu.Unlock()
	require.Equal(t, "asia", asia.refs["1"].Target)
	require.Positive(t, asia.refs["1"].Revision)
	require.Positive(t, asia.refs["1"].Term)
}

// An object that the apply deletes, or that is deleted while the apply waits for it, holds nobody up.
func TestApplyDoesNotWaitForWhatIsDeleted(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	w.DB.Exec(t, `INSERT INTO apps VALUES (4, 'asia', 'v1')`)
	w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	asia.is("1", state(driver.Unhealthy, "crashed"))
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2' WHERE id <> 4; DELETE FROM apps WHERE id = 4`)
	w.Settled("waiting for asia: not healthy: app 1: crashed", euWaits)
	asia.Set(func(context.Context, servertest.Call) driver.Outcome {
		return driver.RetryAfter(time.Hour, errors.New("refused"))
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 1`)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Settled("failing f t", `SELECT concat_ws(' ', state, wanted, present) FROM reconciler.ledger WHERE key = '1'`)
	require.NotContains(t, asia.asked(), "4")
	asia.Set(nil)
	w.DB.Exec(t, `SELECT reconciler.retry('asia')`)
	w.Settled("all healthy", health)
	w.Converged()
}

// The next owner asks anew; what a former one was told does not count.
func TestObjectHealthIsAskedByTheNextOwner(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	p := w.Start(all...)
	w.Places["us"].Eventually(t, map[string]string{"app/3": `["v1", null]`})
	w.Wait()
	asia.is("1", state(driver.Progressing, "2 of 5 are ready"))
	release(w)
	w.Settled("waiting for asia: not healthy: app 1: 2 of 5 are ready", euWaits)
	p.Stop(t)
	asia.is("1", func(ctx context.Context) (driver.ObjectHealth, error) {
		<-ctx.Done()
		return driver.ObjectHealth{}, context.Cause(ctx)
	})
	before := asia.asked()["1"]
	w.Start(all...)
	w.Eventually("the next owner asks", func() bool { return asia.asked()["1"] > before })
	asia.is("1", nil)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Settled("all healthy", health)
}

// Of many objects each is asked until it is healthy; calls go on while answers are slow.
func TestObjectHealthOfManyObjects(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'asia', 'v1' FROM generate_series(1001, 1450) AS i`)
	w.Start(all...)
	w.Wait()
	ill := make(chan struct{})
	asia.is("1300", func(ctx context.Context) (driver.ObjectHealth, error) {
		select {
		case <-ill:
			return driver.ObjectHealth{State: driver.Healthy}, nil
		case <-ctx.Done():
			return driver.ObjectHealth{}, context.Cause(ctx)
		}
	})
	apply(w, `'release 2'`, `UPDATE apps SET image = 'v2'`)
	w.Eventually("it asks", func() bool { return asia.asked()["1300"] > 0 })
	w.DB.Exec(t, `INSERT INTO apps VALUES (6, 'asia', 'v1')`)
	w.Places["asia"].Until(t, func(objects map[string]string, _ []servertest.Call) bool { return objects["app/6"] != "" }, func() string { return "app 6 is not applied" })
	w.Settled("waiting for asia: not healthy: app 1300: not known: timed out after 2s", euWaits)
	close(ill)
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	w.Settled("all healthy", health)
	asia.mu.Lock()
	defer asia.mu.Unlock()
	require.Len(t, asia.asks, 451)
	for key, n := range asia.asks {
		if key != "1300" {
			require.Equal(t, 1, n, "of %s", key)
		}
	}
}

// Where no answer comes, what is known so far is recorded before all have been asked.
func TestObjectHealthOfObjectsThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'asia', 'v1' FROM generate_series(1001, 1099) AS i`)
	w.Start(all...)
	w.Wait()
	hang := func(ctx context.Context) (driver.ObjectHealth, error) {
		<-ctx.Done()
		return driver.ObjectHealth{}, context.Cause(ctx)
	}
	asia.is("1", hang)
	for i := 1001; i < 1100; i++ {
		asia.is(strconv.Itoa(i), hang)
	}
	release(w)
	w.Settled("waiting for asia: not healthy: app 1: not known: timed out after 2s", euWaits)
	require.Less(t, len(asia.asked()), 50)
	asia.mu.Lock()
	require.Equal(t, 4, asia.most, "at once")
	asia.mu.Unlock()
	asia.is("1", nil)
	for i := 1001; i < 1100; i++ {
		asia.is(strconv.Itoa(i), nil)
	}
	w.Settled("completed", `SELECT state FROM reconciler.applies`)
	require.Len(t, asia.asked(), 100)
}

// waitHealthy asks for health and waits for it.
func waitHealthy(w *servertest.World, timeout string) string {
	w.T.Helper()
	w.DB.Exec(w.T, `SELECT reconciler.ask_health()`)
	return w.Text(`SELECT coalesce(string_agg(concat_ws(' ', target, resource, key, state, reason), ', ' ORDER BY target, key), 'all healthy') FROM reconciler.wait_healthy($1::text::interval)`, timeout)
}

// wait_healthy() returns when all objects are healthy, and names those that are not.
func TestWaitHealthy(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	eu := &patient{Place: all[1].Driver.(*servertest.Place), says: healthy}
	all[1].Driver = eu
	w.DB.Exec(t, `INSERT INTO apps SELECT i, 'asia', 'v1' FROM generate_series(1001, 1250) AS i`)
	w.Start(all...)
	w.Wait()
	require.Equal(t, "all healthy", waitHealthy(w, "90 s"))
	require.Len(t, asia.asked(), 251)
	require.Equal(t, 1, asia.asked()["1"])
	require.Equal(t, 1, eu.asked())

	asia.is("1", state(driver.Progressing, "2 of 5 are ready"))
	asia.is("1003", state(driver.Unhealthy, "crashed"))
	eu.is(ill)
	require.Equal(t, "asia app 1 progressing 2 of 5 are ready, asia app 1003 unhealthy crashed, eu unhealthy 2 of 5 are ready", waitHealthy(w, "3 s"))
	require.Equal(t, "asia app 1 progressing 2 of 5 are ready, asia app 1003 unhealthy crashed, eu unhealthy 2 of 5 are ready", w.Text(health))
	done := make(chan string, 1)
	go func() { done <- waitHealthy(w, "90 s") }()
	w.Settled("2", `SELECT count(*)::text FROM reconciler.object_health h WHERE h.asked_at > (SELECT max(at) FROM reconciler.health_asks)`)
	asia.is("1", nil)
	eu.is(healthy)
	w.Settled("asia app 1003 unhealthy crashed", health)
	asia.is("1003", nil)
	require.Equal(t, "all healthy", <-done)
	w.Settled("all healthy", health)
}

// What is asked goes with its object; when nobody waits any more nobody asks.
func TestObjectHealthGoesWithItsObject(t *testing.T) {
	t.Parallel()
	w, asia, all := wards(t)
	w.Start(all...)
	w.Wait()
	asia.is("1", state(driver.Unhealthy, strings.Repeat("x", 5000)))
	w.DB.Exec(t, `SELECT reconciler.ask_health('asia', '2 s')`)
	w.Settled("asia app 1 unhealthy 4096", strings.Replace(health, "reason)", "length(reason))", 1))
	w.Settled("0", `SELECT count(*)::text FROM reconciler.targets t CROSS JOIN LATERAL reconciler.health_waits(t.id)`)
	w.Eventually("the last question is answered", func() bool {
		asia.mu.Lock()
		defer asia.mu.Unlock()
		return asia.now == 0
	})
	w.DB.Exec(t, `DELETE FROM apps WHERE id = 1`)
	w.Settled("all healthy", health)
	require.Equal(t, "0", w.Text(`SELECT count(*)::text FROM reconciler.object_health`))
	require.ErrorContains(t, refusal(w, `SELECT * FROM reconciler.wait_healthy()`), "no owner was asked for the health of its target")
}

func refusal(w *servertest.World, sql string) error {
	_, err := w.DB.Pool.Exec(context.Background(), sql)
	return err //nolint:wrapcheck // for the test
}
