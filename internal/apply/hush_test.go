package apply

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// One line for each cause and minute, whatever objects it is about; the next one tells how many there were.
func TestF98_RefusedCallsAreOneLineForEachCauseAndMinute(t *testing.T) {
	t.Parallel()
	var h hush
	now := time.Unix(0, 0)
	lines := 0
	for n := range 2000 {
		key := fmt.Sprintf("app-%d", n)
		for _, text := range []string{fmt.Sprintf("HTTP 422: object %s of %d bytes", key, n), fmt.Sprintf("no room for %q", key)} {
			if more, due := h.due(now, key, text); due {
				lines++
				require.Zero(t, more)
			}
		}
	}
	require.Equal(t, 2, lines)
	_, due := h.due(now, "app-1", "connection refused")
	require.True(t, due, "another cause")
	more, due := h.due(now.Add(hushFor), "app-1", "HTTP 422: object app-1 of 7 bytes")
	require.True(t, due)
	require.Equal(t, 1999, more)
}

// However many causes there are, the log and the memory of them are bounded.
func TestF98_CausesAreBounded(t *testing.T) {
	t.Parallel()
	var h hush
	now := time.Unix(0, 0)
	word := func(n int) string {
		return string(rune('a'+n%26)) + string(rune('a'+n/26%26)) + string(rune('a'+n/676))
	}
	for range 3 {
		lines := 0
		for n := range 5000 {
			if _, due := h.due(now, "", word(n)); due {
				lines++
			}
		}
		require.LessOrEqual(t, lines, hushMost+1)
		require.LessOrEqual(t, len(h.causes), hushMost+1)
		now = now.Add(hushFor)
	}
}
