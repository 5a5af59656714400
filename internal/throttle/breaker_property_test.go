package throttle

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCircuitFollowsItsHistory: what the breaker says always follows from the calls since the last one that was answered. The
// model keeps this history and counts nothing while it goes.
func TestCircuitFollowsItsHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		timeouts := rapid.IntRange(2, 8).Draw(t, "timeouts")
		b := NewBreaker(timeouts)
		var history []string
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			call := rapid.SampledFrom([]string{"unreached", "timeout", "answered", "passed", "failed probe"}).Draw(t, "call")
			wasOpen := modelOpen(history, timeouts)
			require.Equal(t, wasOpen, b.IsOpen())
			if !wasOpen && (call == "passed" || call == "failed probe") {
				continue // checks are made while the circuit is open only
			}
			history = append(history, call)
			isOpen := modelOpen(history, timeouts)
			switch call {
			case "unreached":
				require.Equal(t, !wasOpen && isOpen, b.Unreached(), "%v", history)
			case "timeout":
				require.Equal(t, !wasOpen && isOpen, b.Timeout(), "%v", history)
			case "answered":
				require.Equal(t, wasOpen, b.Answered(), "%v", history)
			case "passed":
				require.Equal(t, wasOpen, b.Passed(), "%v", history)
			case "failed probe":
				b.FailedProbe()
			}
			require.Equal(t, isOpen, b.IsOpen(), "%v", history)
			requirePause(t, b, modelProbes(history, timeouts))
		}
	})
}

// sinceAnswer are the calls after the last one that was answered.
func sinceAnswer(history []string) []string {
	for i, call := range slices.Backward(history) {
		if call == "answered" {
			return history[i+1:]
		}
	}
	return history
}

// modelOpen says whether the circuit is open. After a check that passed one call is the trial: if it fails, it opens again.
func modelOpen(history []string, timeouts int) bool {
	history = sinceAnswer(history)
	onTrial := false
	for i, call := range slices.Backward(history) {
		if call == "passed" {
			history, onTrial = history[i+1:], true
			break
		}
	}
	unreached, timedOut := 0, 0
	for _, call := range history {
		switch call {
		case "unreached":
			unreached++
		case "timeout":
			timedOut++
		}
	}
	if onTrial {
		return unreached+timedOut > 0
	}
	return unreached >= breakerUnreachable || timedOut >= timeouts
}

// modelProbes counts what did not bring the target back since the circuit opened first.
func modelProbes(history []string, timeouts int) (probes int) {
	history = sinceAnswer(history)
	for i, call := range history {
		if modelOpen(history[:i], timeouts) || call == "passed" || call == "failed probe" {
			probes++
		}
	}
	return probes
}

// requirePause checks that the pause is that of so many probes: 1 s, doubled each time up to 30 s.
func requirePause(t *rapid.T, b *Breaker, probes int) {
	seconds := probeMin.Seconds()
	for range probes {
		seconds = min(2*seconds, probeMax.Seconds())
	}
	require.InDelta(t, seconds, b.Pause().Seconds(), jitterFraction*seconds)
}
