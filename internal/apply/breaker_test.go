package apply

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCircuitOpensAfterCallsThatDidNotReachTheTarget(t *testing.T) {
	t.Parallel()
	b := &breaker{timeouts: 5}
	require.False(t, b.unreached())
	require.False(t, b.unreached())
	require.False(t, b.answered(), "it was not open")
	require.False(t, b.unreached(), "an answer starts the count anew")
	require.False(t, b.unreached())
	require.False(t, b.isOpen())
	require.True(t, b.unreached())
	require.True(t, b.isOpen())
	require.False(t, b.unreached(), "it opens once")
	require.True(t, b.answered())
	require.False(t, b.isOpen())
	require.False(t, b.answered(), "it closes once")
}

func TestCircuitOpensWhenEveryCallTimesOut(t *testing.T) {
	t.Parallel()
	b := &breaker{timeouts: 5}
	for range 4 {
		require.False(t, b.timeout())
	}
	b.answered()
	for range 4 {
		require.False(t, b.timeout())
	}
	require.True(t, b.timeout())
	require.False(t, b.timeout())
	require.True(t, b.isOpen())
}

// C29: a target whose check passes while every call fails is not taken for well, nor called more and more often.
func TestCircuitClosesOnTrialAfterACheck(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(b *breaker) bool{"Unreachable": (*breaker).unreached, "TimesOut": (*breaker).timeout} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &breaker{timeouts: 5}
			for opened := false; !opened; {
				opened = fail(b)
			}
			for _, seconds := range []float64{1, 2, 4, 8, 16, 30, 30} {
				require.InDelta(t, seconds, b.pause().Seconds(), jitterFraction*seconds)
				require.True(t, b.passed())
				require.True(t, fail(b), "the next failure opens it again")
			}
			require.True(t, b.passed())
			b.answered()
			require.False(t, fail(b), "an answer ends the trial")
		})
	}
}

// C29: probes come less and less often, whichever way they fail.
func TestProbesBackOff(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(b *breaker){
		"CallDidNotReachTheTarget": func(b *breaker) { b.unreached() },
		"CallTimedOut":             func(b *breaker) { b.timeout() },
		"CheckFailed":              (*breaker).failedProbe,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &breaker{timeouts: 1}
			b.timeout()
			for _, seconds := range []float64{1, 2, 4, 8, 16, 30, 30} {
				require.InDelta(t, seconds, b.pause().Seconds(), jitterFraction*seconds)
				fail(b)
			}
			b.answered()
			b.timeout()
			require.InDelta(t, time.Second, b.pause(), jitterFraction*float64(time.Second), "recovery resets the pauses")
		})
	}
}
