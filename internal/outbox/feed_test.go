package outbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/metrics"
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

// I9: pages that nobody will ask for again do not stay.
func TestFeedKeepsFewPages(t *testing.T) {
	t.Parallel()
	feed := NewFeed(nil, metrics.New(prometheus.NewRegistry()))
	feed.Prime(2, NewPage(Position{})) // there is a tick that is not known here
	require.Empty(t, feed.pages)
	for i := range int64(3 * cachedPages) {
		feed.Prime(i+1, NewPage(Position{}))
		feed.Publish(Tick{Revision: i + 1, Snapshot: fmt.Sprint(i + 1)})
	}
	require.Len(t, feed.pages, cachedPages)
	require.Len(t, feed.order, cachedPages)
}

// A page ends where its texts are long enough, and the next one begins there.
func TestF17_PagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("k", 2000)
	page := NewPage(Position{})
	for seq := range int64(PageRows) {
		page.Add(seq+1, 7, Event{ResourceID: 1, Key: &key})
	}
	require.Len(t, page.Events, pageBytes/len(key)+1)
	require.True(t, page.More)
	require.Equal(t, Position{Xid: 7, Seq: int64(len(page.Events))}, page.Last)
	short := NewPage(Position{})
	short.Add(1, 7, Event{ResourceID: 1, Key: &key})
	require.False(t, short.More)
}
