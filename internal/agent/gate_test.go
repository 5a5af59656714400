package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// A target that is down is one fact: one line, one trouble, few calls, and no failing object.
func TestAgentStopsCallingATargetThatIsDown(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]func(f *farSide) driver.Driver{
		"ProbedByItsCheck": func(f *farSide) driver.Driver { return checked{f} },
		"ProbedByOneCall":  func(f *farSide) driver.Driver { return f },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.lines = "  concurrency: 2\n"
				b.drv = with(b.far)
				b.fill(200)
				b.far.down = true
				r := b.start(t)
				const trouble = "the target does not answer: connection refused"
				after(10 * time.Second)
				require.Equal(t, trouble, b.Info().Trouble, "it is reported at once")
				after(10 * time.Minute)
				require.Equal(t, trouble, r.targets[0].session.controller.Status().Suspended)
				require.Less(t, len(b.far.called()), 60)
				require.Equal(t, StateSuspended, r.target().State)
				require.Equal(t, trouble, r.target().Trouble)
				require.Equal(t, trouble, r.target().ready)
				require.Equal(t, trouble, b.Info().Trouble)
				require.Zero(t, r.target().Failing)
				require.Equal(t, 1, b.log.count("msg=target_down"))
				require.Zero(t, b.failed())

				b.far.change(func() { b.far.down = false })
				after(time.Minute)
				require.Len(t, strings.Fields(b.far.has()), 200)
				require.Equal(t, StateOK, r.target().State)
				require.Empty(t, b.Info().Trouble)
				require.Equal(t, 1, b.log.count("msg=target_back"))
			})
		})
	}
}

func TestAgentTakesATargetThatSwallowsEveryCallToBeDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  timeout: 1s\n"
		b.fill(100)
		b.far.hang = make(chan struct{})
		r := b.start(t)
		after(5 * time.Minute)
		require.Equal(t, "every call times out: no answer within 1s", r.target().Trouble)
		require.Less(t, b.failed(), 40)
		b.far.change(func() { close(b.far.hang); b.far.hang = nil })
		after(10 * time.Minute)
		require.Len(t, strings.Fields(b.far.has()), 100)
	})
}

func TestAgentCallsNothingWhileTheTargetAsksForThat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  concurrency: 1\n  sync_interval: off\n"
		b.fill(20)
		b.far.outcomes["000"] = driver.SlowDown(30*time.Second, errors.New("429 Too Many Requests"))
		for i := range 20 {
			b.far.outcomes[fmt.Sprintf("%03d", i)] = b.far.outcomes["000"]
		}
		r := b.start(t)
		after(10 * time.Second)
		require.Len(t, b.far.called(), 1)
		require.Equal(t, StateSuspended, r.target().State)
		require.Equal(t, "the target asks to be called less often: 429 Too Many Requests", r.target().Trouble)
		b.far.change(func() { clear(b.far.outcomes) })
		after(time.Minute)
		require.Len(t, strings.Fields(b.far.has()), 20)
		require.Equal(t, StateOK, r.target().State)
	})
}

func TestAgentReportsTheHealthOfTheFarSide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.drv = healthy{b.far}
		r := b.start(t)
		after(time.Minute)
		require.True(t, *b.Info().Healthy)
		b.far.change(func() { b.far.health, b.far.healthTakes = errors.New("HTTP 503"), 2*time.Second })
		b.wire.sent()
		b.Set("app", "web", spec(1))
		after(10 * time.Second)
		for _, report := range b.wire.sent() {
			require.NotContains(t, report, `"healthy":true`, "what was true before the call says nothing about the far side after it")
		}
		require.False(t, *b.Info().Healthy)
		require.Equal(t, "HTTP 503", b.Info().Trouble)
		require.Equal(t, StateFailing, r.target().State)
		b.far.change(func() { b.far.health = nil })
		after(20 * time.Second)
		require.True(t, *b.Info().Healthy)
		require.Equal(t, StateOK, r.target().State)
	})
}
