package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	opts := Options{Writers: WritersDefault, Rounds: RoundsDefault, Length: LengthDefault, Poll: time.Minute}.withDefaults()
	require.Equal(t, []int{1, 16}, opts.crowds())
	require.Equal(t, 144*time.Second, opts.duration())
	require.Equal(t, 120, opts.changes(slowRate, slowLengths))
	require.Equal(t, 400, opts.changes(fastRate, 1))
	require.Equal(t, 8000, opts.rows())
	require.Equal(t, time.Second, opts.Poll, "a longer pause would only take longer to measure")
	opts.Note("nobody is told")

	one := Options{Writers: 1, Rounds: 1, Length: LengthMin}
	require.Equal(t, []int{1}, one.crowds())
	require.Equal(t, 1000, one.rows())
	require.Equal(t, 5, one.changes(slowRate, slowLengths), "a round has some changes, however short it is")
}
