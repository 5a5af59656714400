package apply

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Everything is looked at first, and again every minute; between these, as far back as something was due at the look before, and
// a minute more.
func TestLooksGoBackToWhatWasDueBefore(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var seen horizon
	require.Nil(t, seen.back(at(0)))
	seen.saw(at(0), 0)
	require.InDelta(t, 61, *seen.back(at(1)), .001)
	seen.saw(at(1), 3600) // of a long queue
	require.InDelta(t, 3600+2+60, *seen.back(at(3)), .001)
	seen.saw(at(3), 5)
	require.InDelta(t, 56+5+60, *seen.back(at(59)), .001)
	seen.saw(at(59), 0)
	require.Nil(t, seen.back(at(60)))
	seen.saw(at(60), 0)
	require.InDelta(t, 61, *seen.back(at(61)), .001)
}
