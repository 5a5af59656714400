package throttle

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCircuitOpensAfterCallsThatDidNotReachTheTarget(t *testing.T) {
	t.Parallel()
	b := NewBreaker(5)
	require.False(t, b.Unreached())
	require.False(t, b.Unreached())
	require.False(t, b.Answered(), "it was not open")
	require.False(t, b.Unreached(), "an answer starts the count anew")
	require.False(t, b.Unreached())
	require.False(t, b.IsOpen())
	require.True(t, b.Unreached())
	require.True(t, b.IsOpen())
	require.False(t, b.Unreached(), "it opens once")
	require.True(t, b.Answered())
	require.False(t, b.IsOpen())
	require.False(t, b.Answered(), "it closes once")
}

func TestCircuitOpensWhenEveryCallTimesOut(t *testing.T) {
	t.Parallel()
	b := NewBreaker(5)
	for range 4 {
		require.False(t, b.Timeout())
	}
	b.Answered()
	for range 4 {
		require.False(t, b.Timeout())
	}
	require.True(t, b.Timeout())
	require.False(t, b.Timeout())
	require.True(t, b.IsOpen())
}

// C29: a target whose check passes while every call fails is not taken for well, nor called more and more often.
func TestCircuitClosesOnTrialAfterACheck(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(b *Breaker) bool{"Unreachable": (*Breaker).Unreached, "TimesOut": (*Breaker).Timeout} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := NewBreaker(5)
			for opened := false; !opened; {
				opened = fail(b)
			}
			for _, seconds := range []float64{1, 2, 4, 8, 16, 30, 30} {
				require.InDelta(t, seconds, b.Pause().Seconds(), jitterFraction*seconds)
				require.True(t, b.Passed())
				require.True(t, fail(b), "the next failure opens it again")
			}
			require.True(t, b.Passed())
			b.Answered()
			require.False(t, fail(b), "an answer ends the trial")
		})
	}
}

// C29: probes come less and less often, whichever way they fail.
func TestProbesBackOff(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(b *Breaker){
		"CallDidNotReachTheTarget": func(b *Breaker) { b.Unreached() },
		"CallTimedOut":             func(b *Breaker) { b.Timeout() },
		"CheckFailed":              (*Breaker).FailedProbe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := NewBreaker(1)
			b.Timeout()
			for _, seconds := range []float64{1, 2, 4, 8, 16, 30, 30} {
				require.InDelta(t, seconds, b.Pause().Seconds(), jitterFraction*seconds)
				fail(b)
			}
			b.Answered()
			b.Timeout()
			require.InDelta(t, time.Second, b.Pause(), jitterFraction*float64(time.Second), "recovery resets the pauses")
		})
	}
}
