package throttle

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pace"
)

// takes returns the times, in seconds of a plain build, at which an object that is named again by each look is looked at, until
// nothing waits any more.
func (r *Rechecks[K]) takes(object K) (at []float64, worn []K) {
	began := time.Now()
	for {
		due, tired, next := r.Take(time.Now())
		worn = append(worn, tired...)
		for range due {
			at = append(at, float64(time.Since(began)*pace.Divisor)/float64(time.Second))
			r.Begin(object)
			r.Name(object)
			r.Ended(object)
		}
		switch {
		case len(due) > 0:
		case next == 0:
			return at, worn
		default:
			time.Sleep(next)
		}
	}
}

// What is looked at because of what the look before has changed does not go on for ever.
func TestRechecksEndThatCauseEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewRechecks[string]()
		for range 2 {
			require.True(t, r.Name("a"))
			at, worn := r.takes("a")
			require.Equal(t, []float64{0, 1, 3, 7, 15}, at)
			require.Equal(t, []string{"a"}, worn)
			r.Name("a")
			due, worn, _ := r.Take(time.Now())
			require.Empty(t, due)
			require.Equal(t, []string{"a"}, worn)
			time.Sleep(pace.Of(time.Minute))
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
