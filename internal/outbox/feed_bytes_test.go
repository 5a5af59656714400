package outbox

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A page ends where its texts are long enough, and the next one begins there.
func TestF17_PagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("k", 2000)
	page := newPage(Position{})
	for seq := range int64(PageRows) {
		page.add(seq+1, 7, Event{ResourceID: 1, Key: &key})
	}
	require.Len(t, page.Events, pageBytes/len(key)+1)
	require.True(t, page.More)
	require.Equal(t, Position{Xid: 7, Seq: int64(len(page.Events))}, page.Last)
	short := newPage(Position{})
	short.add(1, 7, Event{ResourceID: 1, Key: &key})
	require.False(t, short.More)
}

// What is longer than a page is read to its end.
func TestF17_BatchOfLongTextsIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	r := b.read()
	b.exec(`INSERT INTO apps SELECT lpad(g::text, 1900, 'k') FROM generate_series(1, 3000) AS g`)
	b.eventually("all arrive", func() bool { return len(r.got()) == 3000 })
}
