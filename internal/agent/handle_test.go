package agent

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestAgentReportsEachOutcomeAndCallsAgainWhenItIsTime(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		out     driver.Outcome
		state   client.State // reported
		message string
		shown   State
		calls   int // within an hour
	}{
		"Backoff":    {driver.Backoff(errors.New("disk full")), client.StateFailed, "disk full", StateFailing, 24},
		"RetryAfter": {driver.RetryAfter(10*time.Minute, errors.New("busy")), client.StateProgressing, "busy", StatePending, 6},
		"Waiting":    {driver.Waiting(10*time.Minute, "queued"), client.StateProgressing, "queued", StatePending, 7},
		"Terminal":   {driver.Terminal(errors.New("no such image")), client.StateFailed, "no such image", StateFailing, 1},
		"Unapproved": {driver.Unapproved(errors.New("the disk goes")), client.StateProgressing, "waits for approval: the disk goes", StateHeld, 1},
		"Panic":      {driver.Backoff(errors.New("panic")), client.StateFailed, "the driver panicked: no such thing", StateFailing, 24},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				b.lines = "  sync_interval: off\n"
				b.far.outcomes["web"] = tc.out
				b.Set("app", "web", spec(1))
				b.Set("app", "other", spec(1))
				r := b.start(t)
				after(time.Minute)
				o, err := b.WaitObserved(t.Context(), "app", "web", tc.state)
				require.NoError(t, err)
				require.Equal(t, tc.message, o.Message)
				require.Equal(t, tc.shown, r.target().State)
				require.Equal(t, `app/other={"n":1}`, b.far.has(), "the other object is not affected")
				after(time.Hour - time.Minute)
				calls := len(b.far.called()) - 1
				require.InDelta(t, tc.calls, calls, float64(tc.calls)/2)

				b.far.change(func() { clear(b.far.outcomes) })
				b.Set("app", "web", spec(2)) // another spec is another attempt
				after(time.Second)
				require.Equal(t, StateOK, r.target().State)
				require.Contains(t, b.far.has(), `app/web={"n":2}`)
			})
		})
	}
}

// A key column may have an empty text.
func TestAnEmptyKeyIsOneLikeOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Set("app", "", spec(1))
		b.Set("app", "web", spec(1))
		b.start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, key := range []string{"", "web"} {
			_, err := b.WaitObserved(ctx, "app", key, client.StateApplied)
			require.NoError(t, err)
		}
		b.Delete("app", "")
		_, err := b.WaitObserved(ctx, "app", "", client.StateAbsent)
		require.NoError(t, err)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
	})
}

// terms returns the terms and revisions of the calls since the last time.
func (f *farSide) stamps() (terms, revisions []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.calls {
		terms, revisions = append(terms, o.Term), append(revisions, o.Revision)
	}
	f.calls = nil
	return terms, revisions
}

func TestRevisionsNeverGoBackAndAttemptsThatAreRepeatedHaveTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  backoff: {min: 1s, max: 1s}\n"
		b.far.outcomes["web"] = backoff("disk full")
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(10 * time.Second)
		_, revisions := b.far.stamps()
		require.Greater(t, len(revisions), 3)
		for _, revision := range revisions {
			require.Equal(t, revisions[0], revision)
		}
		b.far.change(func() { clear(b.far.outcomes) })
		b.Set("app", "web", spec(2))
		after(10 * time.Second)
		b.Reset("restored") // versions begin anew
		after(10 * time.Second)
		b.Delete("app", "web")
		after(10 * time.Second)
		terms, later := b.far.stamps()
		require.Greater(t, len(later), 2)
		last := revisions[0]
		for _, revision := range later {
			require.Greater(t, revision, last)
			last = revision
		}
		require.NoError(t, r.stop())

		b.Set("app", "web", spec(3))
		b.start(t)
		after(time.Second)
		again, _ := b.far.stamps()
		require.Greater(t, again[0], terms[0])
	})
}

func TestTermGrowsWithEachStartAlsoWhenTheClockGoesBack(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	term := func(now time.Time) int64 {
		id, err := openIdentity(dir, now)
		require.NoError(t, err)
		return id.Term
	}
	first := term(now)
	require.Equal(t, now.UnixMicro(), first)
	require.Equal(t, first+1, term(now.Add(-time.Hour)))
	require.Equal(t, now.Add(time.Hour).UnixMicro(), term(now.Add(time.Hour)))
	require.NoError(t, os.WriteFile(dir+"/agent.json", []byte("{"), 0o600))
	_, err := openIdentity(dir, now)
	require.EqualError(t, err, dir+"/agent.json cannot be read: unexpected end of JSON input: remove it, and it is made anew")
}

func TestCallsThatTakeTooLongAreFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  timeout: 3s\n"
		b.far.hang = make(chan struct{})
		b.Set("app", "web", spec(1))
		b.start(t)
		after(4 * time.Second)
		require.Equal(t, 1, b.failed())
		o, err := b.WaitObserved(t.Context(), "app", "web", client.StateFailed)
		require.NoError(t, err)
		require.Equal(t, "no answer within 3s", o.Message)
	})
}

func TestConcurrencyBoundsTheCallsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  concurrency: 3\n  timeout: 1m\n"
		b.fill(10)
		b.far.hang = make(chan struct{})
		r := b.start(t)
		after(time.Second)
		require.Equal(t, 3, r.targets[0].session.controller.Status().Running)
		close(b.far.hang)
		after(time.Second)
		require.Len(t, strings.Fields(b.far.has()), 10)
	})
}

func TestRateBoundsTheCallsASecondAndDelaysNoSnapshot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  rate: 0.1\n  sync_interval: off\n"
		b.fill(10)
		r := b.start(t)
		after(time.Minute)
		require.InDelta(t, 6, len(b.far.called()), 2)
		b.Delete("app", "009")
		b.Reset("expired")
		after(5 * time.Second)
		require.Empty(t, r.target().Server, "the snapshot has ended")
		after(5 * time.Minute)
		require.Len(t, strings.Fields(b.far.has()), 9)
	})
}

func TestStopWaitsForCallsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  timeout: 1m\n"
		b.far.hang = make(chan struct{})
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		r.cancel()
		after(5 * time.Second)
		close(b.far.hang)
		<-r.ended
		require.NoError(t, r.err)
		require.Equal(t, `app/web={"n":1}`, b.far.has())
		_, err := b.WaitObserved(t.Context(), "app", "web", client.StateApplied)
		require.NoError(t, err, "the result was reported")
		b.far.called()
		b.start(t)
		after(time.Second)
		require.Empty(t, b.far.called(), "and written down")
	})
}

func TestStopCancelsCallsAfterTheShutdownTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  timeout: 10m\n"
		b.far.hang = make(chan struct{})
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(time.Second)
		began := time.Now()
		require.NoError(t, r.stop())
		require.InDelta(t, 10, time.Since(began).Seconds(), 1)
		require.Zero(t, b.failed(), "nothing is known of the object")
	})
}
