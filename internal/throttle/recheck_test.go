package throttle

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pace"
)

// takes returns the times, in seconds of a plain build, of the next n looks at an object that each look names again, and the objects that
// keep changing.
func (r *Rechecks[K]) takes(object K, n int) (at []float64, restless []K) {
	began := time.Now()
	for len(at) < n {
		due, more, next := r.Take(time.Now())
		restless = append(restless, more...)
		for range due {
			at = append(at, float64(time.Since(began)*pace.Divisor)/float64(time.Second))
			r.Begin(object)
			r.Name(object)
			r.Ended(object)
		}
		if len(due) == 0 {
			time.Sleep(next)
		}
	}
	return at, restless
}

// What is looked at because of what the look before has changed is looked at less and less often, and not left alone: the last change
// may be another's.
func TestRechecksThatCauseEachOtherSlowDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRechecks[string]()
		for range 2 {
			require.True(t, r.Name("a"))
			at, restless := r.takes("a", 13)
			require.Equal(t, []float64{0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1023, 1623, 2223}, at)
			require.Equal(t, []string{"a"}, restless)
			clear(r.named)
			time.Sleep(pace.Of(20 * time.Minute)) // it is quiet
		}
	})
}

// While an object is looked at it is not given out again: what named it may have come before. It waits for the end of that look, which
// may never come.
func TestRecheckWaitsForTheOneBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRechecks[string]()
		r.Begin("a")
		r.Name("a")
		<-r.Named
		time.Sleep(pace.Of(30 * time.Second))
		due, _, next := r.Take(time.Now())
		require.Empty(t, due)
		require.Equal(t, pace.Of(30*time.Second), next)
		r.Ended("a")
		<-r.Named
		due, _, next = r.Take(time.Now())
		require.Empty(t, due)
		require.Equal(t, pace.Of(time.Second), next)
		time.Sleep(next)
		due, _, next = r.Take(time.Now())
		require.Equal(t, []string{"a"}, due)
		require.Zero(t, next)

		r.Begin("a")
		r.Name("a")
		time.Sleep(pace.Of(time.Minute))
		due, _, _ = r.Take(time.Now())
		require.Equal(t, []string{"a"}, due)
		r.Ended("unknown")
	})
}

func TestRechecksAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRechecks[string]()
		room := 0
		for i := range 100_000 {
			if r.Name(fmt.Sprint(i)) {
				room++
			}
		}
		require.Equal(t, 8192, room)
		require.True(t, r.Name("7"), "it waits already")
		due, _, _ := r.Take(time.Now())
		require.Len(t, due, 8192)
		require.True(t, r.Name("8192"))

		for i := range 100_000 {
			if i == 4000 {
				time.Sleep(time.Second)
			}
			require.Equal(t, i < 8192, r.Begin(fmt.Sprint(i)))
		}
		require.True(t, r.Begin("7"), "it is known already")
		time.Sleep(pace.Of(time.Minute) - time.Second)
		require.True(t, r.Begin("8192"))
		require.Len(t, r.looks, 1+8192-3999) // and the one that was known, and begun later
	})
}
