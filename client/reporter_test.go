package client

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A batch that the server finds too large does not overwrite newer observations.
func TestBatchThatIsPutBackReplacesNothingNewer(t *testing.T) {
	t.Parallel()
	c, err := New("http://localhost")
	require.NoError(t, err)
	r := newReporter(c, "eu", nil)
	r.add(Observation{Resource: "app", Key: "1", Version: 1, State: StateApplied})
	r.add(Observation{Resource: "app", Key: "2", Version: 1, State: StateApplied})
	batch := r.take()
	r.add(Observation{Resource: "app", Key: "1", Version: 2, State: StateApplied})
	require.True(t, r.refused(&StatusError{Status: 413}, batch))
	require.Len(t, batch, 2)
	require.Equal(t, []Observation{{Resource: "app", Key: "1", Version: 2, State: StateApplied}}, r.take())
	require.Equal(t, batch[1:], r.take())
}
