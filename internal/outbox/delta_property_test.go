package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/store"
)

// drawnSnapshot is a pg_snapshot: what is below xmax and not in progress is visible.
type drawnSnapshot struct {
	xmax       uint64
	inProgress []uint64 // ascending
}

func (s drawnSnapshot) sees(xid uint64) bool {
	return xid < s.xmax && !slices.Contains(s.inProgress, xid)
}

func (s drawnSnapshot) String() string {
	xmin, list := s.xmax, make([]string, len(s.inProgress))
	for i, xid := range s.inProgress {
		list[i] = fmt.Sprint(xid)
		xmin = min(xmin, xid)
	}
	return fmt.Sprintf("%d:%d:%s", xmin, s.xmax, strings.Join(list, ","))
}

// later draws a snapshot that may follow this one: what has ended stays ended.
func (s drawnSnapshot) later(random *rand.Rand, most uint64) drawnSnapshot {
	next := drawnSnapshot{xmax: s.xmax + random.Uint64N(most-s.xmax+1)}
	for xid := uint64(3); xid < next.xmax; xid++ {
		if !s.sees(xid) && random.IntN(3) == 0 {
			next.inProgress = append(next.inProgress, xid)
		}
	}
	return next
}

// I1: between any two snapshots, read in pages of any size, there is every row once that the second sees and the first does not.
func TestDeltaOfRandomSnapshots(t *testing.T) {
	t.Parallel()
	seed := pgtest.Pick(1, uint64(time.Now().UnixNano()))
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	const most = 40
	type place struct {
		xid uint64
		seq int64
	}
	var rows []place
	for seq := range int64(120) {
		row := place{3 + random.Uint64N(most), seq + 1}
		rows = append(rows, row)
		w.Exec(t, `INSERT INTO reconciler.outbox (xid, seq, resource_id, key) VALUES ($1::text::xid8, $2, 1, 'k')`, fmt.Sprint(row.xid), row.seq)
	}
	slices.SortFunc(rows, func(a, b place) int {
		if a.xid != b.xid {
			return int(a.xid) - int(b.xid)
		}
		return int(a.seq - b.seq)
	})
	for range 150 {
		from := drawnSnapshot{xmax: 3}.later(random, most)
		to := from.later(random, most+5)
		var want, got []place
		for _, row := range rows {
			if to.sees(row.xid) && !from.sees(row.xid) {
				want = append(want, row)
			}
		}
		page := 1 + random.Int32N(40)
		at := place{0, -1}
		for more := true; more; {
			delta, err := store.New(w.Pool).OutboxDelta(t.Context(), store.OutboxDeltaParams{
				FromSnapshot: from.String(), ToSnapshot: to.String(), AfterXid: fmt.Sprint(at.xid), AfterSeq: at.seq, PageRows: page,
			})
			require.NoError(t, err)
			more = len(delta) == int(page) && delta[0].Xid > 0
			for _, row := range delta {
				if row.Xid > 0 { // 0: a row without any, which carries the floor
					at = place{row.Xid, row.Seq}
					got = append(got, at)
				}
			}
		}
		require.Equal(t, want, got, "from %s to %s in pages of %d", from, to, page)
	}
}
