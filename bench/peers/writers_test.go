package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWritersRows(t *testing.T) {
	t.Parallel()
	// Every row has one writer, and no writer leaves the table.
	for _, writers := range []int{1, 16, 64} {
		for _, ids := range []int{64, 100, 10_000} {
			seen := map[int]bool{}
			for w := range writers {
				for i := range ownRows(ids, writers, w) {
					id := rowOf(writers, w, i)
					require.False(t, seen[id], "row %d has two writers", id)
					seen[id] = true
				}
			}
			require.Len(t, seen, ids)
			require.True(t, seen[1] && seen[ids])
		}
	}
}
