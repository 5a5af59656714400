package apply

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatABatchHasBrought(t *testing.T) {
	t.Parallel()
	b := brought{memory: NewMemory()}
	require.False(t, b.again(ObjectID{ResourceID: 1, Key: "a"}))
	require.True(t, b.again(ObjectID{ResourceID: 1, Key: "a"}))
	require.False(t, b.again(ObjectID{ResourceID: 2, Key: "a"}), "of another resource")
	require.False(t, b.again(ObjectID{ResourceID: 1, Key: "b"}))
	b.forget()
	require.False(t, b.again(ObjectID{ResourceID: 1, Key: "a"}), "in the next batch")
}

// What there is no room for is looked at each time it comes.
func TestOwnersShareTheRoomForWhatBatchesBring(t *testing.T) {
	t.Parallel()
	memory := NewMemory()
	one, two := brought{memory: memory}, brought{memory: memory}
	for i := range memoryObjects {
		require.False(t, one.again(ObjectID{ResourceID: 1, Key: strconv.Itoa(i)}))
	}
	for range 2 {
		require.False(t, one.again(ObjectID{ResourceID: 1, Key: "more"}))
		require.False(t, two.again(ObjectID{ResourceID: 1, Key: "0"}))
	}
	require.True(t, one.again(ObjectID{ResourceID: 1, Key: "0"}))

	one.forget()
	require.False(t, two.again(ObjectID{ResourceID: 1, Key: "0"}))
	require.True(t, two.again(ObjectID{ResourceID: 1, Key: "0"}))
	two.forget()
	require.EqualValues(t, memoryObjects, memory.left.Load())
}
