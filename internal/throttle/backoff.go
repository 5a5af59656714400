package throttle

import (
	"math/rand/v2"
	"time"
)

// jitterFraction is how far a pause strays from its nominal length, either way.
const jitterFraction = 0.2

// Backoff is the pause before the next attempt at an object.
type Backoff struct {
	Min time.Duration // after the first failure
	Max time.Duration // the cap
}

// Pause returns the nominal pause after n failures in a row: Min doubled n-1 times, at most Max.
func (b Backoff) Pause(n int) time.Duration {
	pause := b.Min
	for range n - 1 {
		if pause >= b.Max/2 {
			return b.Max
		}
		pause *= 2
	}
	return min(pause, b.Max)
}

// Longest returns the longest pause that can be of an object whose target asks for at most a pause: a planned attempt that is further
// away than this was planned by a clock that was ahead.
func (b Backoff) Longest(asked time.Duration) time.Duration {
	return time.Duration(float64(max(b.Max, asked))*(1+jitterFraction)) + time.Second
}

// Spread lengthens a pause that a target asked for, never shortens it: those that were told to come back at the same time do not
// come together.
func Spread(pause time.Duration) time.Duration {
	if pause <= 0 {
		return pause
	}
	most := max(time.Second, time.Duration(float64(pause)*jitterFraction))
	return pause + rand.N(most)
}

// Jittered varies a pause by a fifth either way, so that objects that failed together do not come back together.
func Jittered(pause time.Duration) time.Duration {
	return time.Duration(float64(pause) * (1 - jitterFraction + 2*jitterFraction*rand.Float64()))
}
