package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The leadership's heartbeat waits for a piece, so a slow view must make pieces small before the lease runs out.
func TestPiecesOfChangesFollowTheTimeThatTheyTake(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		size, changes int
		took          time.Duration
		want          int
	}{
		{64, 64, 10 * time.Millisecond, 128},
		{64, 3, time.Millisecond, 64}, // says nothing about 64
		{64, 64, 500 * time.Millisecond, 64},
		{64, 64, 2 * time.Second, 16},
		{64, 2, 2 * time.Second, 1},
		{1, 1, time.Minute, 1},
		{2048, 2048, time.Millisecond, 2048},
	} {
		require.Equal(t, test.want, nextPiece(test.size, test.changes, test.took), test)
	}
}
