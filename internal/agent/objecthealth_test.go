package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// ward is a far side that can be asked for the health of each object. Those that are not staged are healthy.
type ward struct {
	*farSide

	says  map[string]driver.ObjectHealth // by key
	fails map[string]error               // by key
	slow  time.Duration                  // of each answer
	asked map[string]int                 // by key
	most  int                            // at once
	now   int
}

func (f *ward) Health(context.Context) error { return errors.New("the target as a whole is asked") }

func (f *ward) ObjectHealth(ctx context.Context, ref driver.Ref) (driver.ObjectHealth, error) {
	var says driver.ObjectHealth
	var err error
	var slow time.Duration
	f.change(func() {
		f.asked[ref.Key]++
		f.now++
		f.most = max(f.most, f.now)
		slow = f.slow
		var staged bool
		if says, staged = f.says[ref.Key]; !staged {
			says.State = driver.Healthy
		}
		err = f.fails[ref.Key]
	})
	select {
	case <-time.After(slow):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	f.change(func() { f.now-- })
	return says, err
}

func (f *ward) is(key string, state driver.HealthState, reason string) {
	f.change(func() { f.says[key] = driver.ObjectHealth{State: state, Reason: reason} })
}

// questions returns how often the objects were asked about since the last time.
func (f *ward) questions() (n int) {
	f.change(func() {
		for _, asked := range f.asked {
			n += asked
		}
		clear(f.asked)
	})
	return n
}

func wardBed(t *testing.T) (*bed, *ward) {
	t.Helper()
	b := newBed(t)
	far := &ward{farSide: b.far, says: map[string]driver.ObjectHealth{}, fails: map[string]error{}, asked: map[string]int{}}
	b.drv = far
	return b, far
}

// healths returns the objects and their health as they were last reported, and the message.
func (b *bed) healths() string {
	all := make([]string, 0, 8)
	for _, o := range b.Observations() {
		text := fmt.Sprintf("%s v%d %s", o.Key, o.Version, o.State)
		if o.Healthy != nil {
			text += fmt.Sprintf(" %t", *o.Healthy)
		}
		if o.Message != "" {
			text += ": " + o.Message
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// What was changed is asked about at once, and what is not healthy until it is. Each change of an answer is reported, and nothing else.
func TestAgentReportsTheHealthOfObjects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far := wardBed(t)
		b.lines = "  sync_interval: 168h\n"
		far.is("db", driver.Progressing, "2 of 5 are ready")
		b.Set("app", "web", spec(1))
		b.Set("app", "db", spec(1))
		r := b.start(t)
		after(10 * time.Second)
		require.Equal(t, "db v2 applied false: 2 of 5 are ready, web v1 applied true", b.healths())
		require.False(t, *r.target().Healthy)
		require.Nil(t, b.Info().Healthy, "that is of the far side as a whole")

		b.wire.sent()
		after(30 * time.Second)
		require.Empty(t, b.wire.sent(), "nothing is news")
		far.is("db", driver.Unhealthy, "crashed")
		after(20 * time.Second)
		require.Equal(t, "db v2 applied false: crashed, web v1 applied true", b.healths())
		far.is("db", driver.Healthy, "")
		after(20 * time.Second)
		require.Equal(t, "db v2 applied true, web v1 applied true", b.healths())
		require.True(t, *r.target().Healthy)
		far.questions()
		after(time.Hour)
		require.Zero(t, far.questions(), "what is healthy and has not changed is left alone")

		b.far.change(func() { far.slow = 3 * time.Second })
		b.Set("app", "web", spec(2))
		after(time.Second)
		require.Equal(t, "db v2 applied true, web v3 applied false: its health was not asked since the last call", b.healths())
		b.Set("app", "web", spec(3))
		after(2*time.Second + 100*time.Millisecond)
		require.Contains(t, b.healths(), "web v4 applied false: its health was not", "the answer is older than the call")
		after(10 * time.Second)
		require.Equal(t, "db v2 applied true, web v4 applied true", b.healths())
		require.NoError(t, r.stop())
	})
}

// What the driver cannot say is not healthy, and its words are bounded. What is gone is not asked about.
func TestAgentReportsHealthThatIsNotKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far := wardBed(t)
		b.lines = "  sync_interval: 168h\n  timeout: 2s\n"
		far.is("odd", "sleepy", "")
		far.is("silent", driver.Unhealthy, "")
		far.is("long", driver.Unhealthy, strings.Repeat("x", 5000))
		far.fails["unknown"] = errors.New("no such object")
		for _, key := range []string{"odd", "silent", "long", "unknown"} {
			b.Set("app", key, spec(1))
		}
		r := b.start(t)
		after(10 * time.Second)
		require.Equal(t, "long v3 applied false: "+strings.Repeat("x", 1024)+", "+
			`odd v1 applied false: not known: the driver returned the state "sleepy", `+
			"silent v2 applied false: the driver gave no reason, unknown v4 applied false: not known: no such object", b.healths())

		b.far.change(func() { b.far.outcomes["odd"] = driver.Terminal(errors.New("not now")) })
		for _, key := range []string{"odd", "long", "unknown"} {
			b.Delete("app", key)
		}
		after(30 * time.Second)
		far.questions()
		b.far.change(func() { far.slow = time.Hour })
		after(30 * time.Second)
		require.Zero(t, far.asked["odd"]+far.asked["long"]+far.asked["unknown"])
		require.Contains(t, b.healths(), "silent v2 applied false: not known: no answer within 2s")
		require.NoError(t, r.stop())
	})
}

// An agent that begins does not take objects for healthy that another process has seen, and an inventory has their health.
func TestAgentAsksForTheHealthOfObjectsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far := wardBed(t)
		b.Set("app", "web", spec(1))
		b.Set("app", "db", spec(1))
		far.is("db", driver.Unhealthy, "crashed")
		r := b.start(t)
		after(10 * time.Second)
		require.NoError(t, r.stop())
		b.far.called()
		far.questions()

		b.far.change(func() { far.slow = 3 * time.Second })
		r = b.start(t)
		after(time.Second)
		require.NoError(t, r.Agent.targets[0].session.controller.ReportInventory(t.Context()))
		const unasked = "applied false: its health was not asked since the last call"
		require.Equal(t, "db v2 "+unasked+", web v1 "+unasked, b.healths())
		after(10 * time.Second)
		require.Equal(t, "db v2 applied false: crashed, web v1 applied true", b.healths())
		require.NoError(t, r.Agent.targets[0].session.controller.ReportInventory(t.Context()))
		require.Equal(t, "db v2 applied false: crashed, web v1 applied true", b.healths())
		require.Empty(t, b.far.called())
		require.NoError(t, r.stop())
	})
}

// A listing has all objects asked about, at a bounded pace, so that one is noticed that falls ill by itself.
func TestAgentAsksForTheHealthOfAllAfterAListing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far := wardBed(t)
		b.lines = "  sync_interval: 1h\n  concurrency: 3\n"
		for i := range 250 {
			b.Set("app", fmt.Sprint(i), spec(1))
		}
		r := b.start(t)
		after(5 * time.Minute)
		require.NotContains(t, b.healths(), "false")
		for i := range 250 {
			far.is(fmt.Sprint(i), driver.Unhealthy, "crashed")
		}
		far.questions()
		after(time.Minute)
		require.Zero(t, far.questions())
		b.far.change(func() { far.slow = 10 * time.Millisecond })
		r.Agent.targets[0].session.controller.List()
		after(500 * time.Millisecond)
		require.Equal(t, healthPage, far.questions())
		after(healthEvery / 2)
		require.Equal(t, healthPage, strings.Count(b.healths(), "applied false: crashed"))
		after(time.Minute)
		require.Equal(t, 250, strings.Count(b.healths(), "applied false: crashed"))
		require.Equal(t, 3, far.most)
		require.NoError(t, r.stop())
	})
}

// A target that does not answer is not asked.
func TestAgentAsksForNoHealthWhileTheTargetIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, far := wardBed(t)
		b.lines = "  sync_interval: 168h\n"
		b.Set("app", "web", spec(1))
		far.is("web", driver.Unhealthy, "crashed")
		r := b.start(t)
		after(10 * time.Second)
		b.far.change(func() { b.far.down = true })
		for i := range 10 {
			b.Set("app", fmt.Sprint(i), spec(1))
		}
		after(10 * time.Second)
		require.Equal(t, StateSuspended, r.target().State)
		far.questions()
		after(time.Hour)
		require.Zero(t, far.questions())
		b.far.change(func() { b.far.down = false })
		far.is("web", driver.Healthy, "")
		after(2 * time.Minute)
		require.NotContains(t, b.healths(), "false")
		require.NoError(t, r.stop())
	})
}
