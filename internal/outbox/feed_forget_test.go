package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A page that could not be read leaves nothing behind: neither itself nor its place among those that are kept.
func TestAPageThatFailedLeavesNoPlace(t *testing.T) {
	t.Parallel()
	f := &Feed{pages: map[pageKey]*pageEntry{}}
	key, failed, read := pageKey{from: 1, to: 2}, &pageEntry{}, &pageEntry{}
	f.keepLocked(key, failed)
	f.forget(key, failed)
	require.Empty(t, f.order)
	f.keepLocked(key, read)
	f.forget(key, failed)
	require.Same(t, read, f.pages[key], "another one's")
	for i := range cachedPages - 1 {
		f.keepLocked(pageKey{from: int64(i + 10)}, &pageEntry{})
	}
	require.Same(t, read, f.pages[key])
	require.Len(t, f.order, len(f.pages))
}
