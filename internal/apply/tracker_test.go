package apply

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/outbox"
)

func at(revision int64) cursor { return cursor{base: outbox.Tick{Revision: revision}} }

func (t *tracker) mustOpen(tb require.TestingT, revision int64, keys ...string) *span {
	p, _ := t.tryOpen(at(revision))
	require.NotNil(tb, p, "too many pages are open")
	for _, key := range keys {
		t.add(p, object(key))
	}
	return p
}

func TestCursorMovesOverSettledPagesOnly(t *testing.T) {
	t.Parallel()
	tr := newTracker()
	_, moved := tr.take()
	require.False(t, moved)

	first := tr.mustOpen(t, 1, "a", "b")
	second := tr.mustOpen(t, 2, "a")
	tr.close(second)
	tr.settle(object("a"), []*span{first, second})
	_, moved = tr.take()
	require.False(t, moved, "the first page is still being handed out, and b is not settled")

	tr.close(first)
	_, moved = tr.take()
	require.False(t, moved, "b is not settled")

	tr.settle(object("b"), []*span{first})
	cur, moved := tr.take()
	require.True(t, moved)
	require.Equal(t, at(2), cur)
	_, moved = tr.take()
	require.False(t, moved, "it was taken already")
	require.False(t, tr.busy())
}

func TestPageWithoutObjectsSettlesWhenItIsHandedOut(t *testing.T) {
	t.Parallel()
	tr := newTracker()
	p := tr.mustOpen(t, 1)
	require.True(t, tr.busy())
	_, moved := tr.take()
	require.False(t, moved)
	tr.close(p)
	require.True(t, tr.busy(), "the move waits to be recorded")
	cur, moved := tr.take()
	require.True(t, moved)
	require.Equal(t, at(1), cur)
}

// I1: whatever the order in which objects settle, the cursor stands at the end of the longest prefix of pages in which
// nothing is open.
func TestCursorIsTheLongestSettledPrefix(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tr := newTracker()
		type page struct {
			span *span
			open map[string]bool
		}
		var pages []*page
		want := cursor{}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				p := &page{open: map[string]bool{}}
				keys := rapid.SliceOfNDistinct(rapid.StringOfN(rapid.RuneFrom([]rune("abcd")), 1, 1, 1), 0, 4, rapid.ID).Draw(t, "keys")
				p.span = tr.mustOpen(t, int64(len(pages)+1), keys...)
				for _, key := range keys {
					p.open[key] = true
				}
				pages = append(pages, p)
				tr.close(p.span)
			},
			"settle": func(t *rapid.T) {
				if len(pages) == 0 {
					return
				}
				key := rapid.StringOfN(rapid.RuneFrom([]rune("abcd")), 1, 1, 1).Draw(t, "key")
				var spans []*span
				for _, p := range pages[:rapid.IntRange(1, len(pages)).Draw(t, "pages")] {
					spans = append(spans, p.span)
					delete(p.open, key)
				}
				tr.settle(object(key), spans)
			},
			"": func(t *rapid.T) {
				total := 0
				prefix := true
				for i, p := range pages {
					total += len(p.open)
					if prefix = prefix && len(p.open) == 0; prefix {
						want = at(int64(i + 1))
					}
				}
				require.Equal(t, total, tr.total)
				cur, _ := tr.take()
				require.Equal(t, want, cur)
			},
		})
	})
}

func TestObjectsThatHoldTheCursorForTooLongAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker()
		first := tr.mustOpen(t, 1, "slow", "quick")
		second := tr.mustOpen(t, 2, "slow", "other")
		tr.close(first)
		tr.close(second)
		tr.settle(object("quick"), []*span{first})

		objects, release := tr.late(time.Now())
		require.Empty(t, objects)
		require.Nil(t, release)

		elapse(patience)
		third := tr.mustOpen(t, 3, "young")
		tr.close(third)
		objects, release = tr.late(time.Now())
		require.ElementsMatch(t, []ObjectID{object("slow"), object("other")}, objects, "both old pages at once, each object once")
		_, moved := tr.take()
		require.False(t, moved, "they are not recorded yet")
		release()
		cur, moved := tr.take()
		require.True(t, moved)
		require.Equal(t, at(2), cur)
		require.Equal(t, 1, tr.total)

		// Their results come later and change nothing.
		tr.settle(object("slow"), []*span{first, second})
		require.Equal(t, 1, tr.total)
		tr.settle(object("young"), []*span{third})
		cur, _ = tr.take()
		require.Equal(t, at(3), cur)
	})
}

func TestPageThatIsStillHandedOutIsNotLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker()
		tr.mustOpen(t, 1, "a")
		elapse(time.Hour)
		_, release := tr.late(time.Now())
		require.Nil(t, release)
	})
}

// I9: while a target does not answer, a hot object that is changed again and again opens page after page and takes no
// room in the queue. The reading stops all the same.
func TestOpenPagesAreBounded(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(tr *tracker) (first *span, keys []string){
		"ByNumber": func(tr *tracker) (first *span, keys []string) {
			for i := range openPages {
				p := tr.mustOpen(t, int64(i+1), "hot")
				tr.close(p)
				if i == 0 {
					first = p
				}
			}
			return first, []string{"hot"}
		},
		"ByObjects": func(tr *tracker) (first *span, keys []string) {
			for i := range openObjects {
				keys = append(keys, fmt.Sprint(i))
			}
			first = tr.mustOpen(t, 1, keys...)
			tr.close(first)
			return first, keys
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tr := newTracker()
				first, keys := fill(tr)
				opened := make(chan *span, 1)
				go func() {
					p, err := tr.open(t.Context(), at(9999))
					if err == nil {
						opened <- p
					}
				}()
				synctest.Wait()
				require.Empty(t, opened)
				for _, key := range keys {
					tr.settle(object(key), []*span{first})
				}
				require.NotNil(t, <-opened)
			})
		})
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	tr := newTracker()
	for i := range openPages {
		tr.mustOpen(t, int64(i+1), "hot")
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, err := tr.open(ctx, at(1))
	require.ErrorIs(t, err, why)
}
