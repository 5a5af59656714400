package budget

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const mib = 1 << 20

// F118: what the targets of a process hold is bounded together, and one of them is not in the way of another.
func TestF118_SharesAreBoundedTogether(t *testing.T) {
	t.Parallel()
	all := NewShares(64 * mib)
	fill := func(s *Share) {
		for s.Borrow(mib) != 0 { //nolint:revive // it is the borrowing that counts
		}
	}
	first := all.Share(func() {})
	fill(first)
	require.EqualValues(t, 48*mib, all.Used(), "one alone may hold three quarters")
	shares := []*Share{first}
	for range 39 {
		s := all.Share(func() {})
		fill(s)
		require.Positive(t, s.held, "one that comes later gets some, too")
		shares = append(shares, s)
	}
	require.LessOrEqual(t, all.Used(), int64(64*mib+40), "beside an object of each")
	first.Add(-first.held)
	for _, s := range shares { // each gives back what it holds when its calls are over, and wants as much as it can get
		s.Add(-s.held)
		fill(s)
	}
	for _, s := range shares {
		require.Greater(t, s.held, int64(mib), "of 1.2 MiB")
		require.LessOrEqual(t, s.held, int64(48*mib/40))
	}
	require.LessOrEqual(t, all.Used(), int64(64*mib+40), "beside an object of each")
	for _, s := range shares {
		s.Close()
	}
	require.Zero(t, all.Used())
}

func TestF118_OneObjectOfEachShareIsAlwaysLent(t *testing.T) {
	t.Parallel()
	all := NewShares(mib)
	woken := 0
	a, b := all.Share(func() {}), all.Share(func() { woken++ })
	a.Add(2 * mib) // an object that was larger than what was left
	require.False(t, a.Free())
	require.True(t, b.Free())
	require.EqualValues(t, 1, b.Borrow(4*mib), "one byte stands for one object")
	b.Add(mib - 1)
	require.Zero(t, b.Borrow(mib))
	require.Zero(t, woken)
	b.Add(-mib / 2)
	require.Zero(t, woken, "what is free is not enough yet")
	a.Add(-2 * mib)
	require.Equal(t, 1, woken)
	require.True(t, b.Free())
	a.Close()
	b.Close()
	require.Zero(t, all.Used())
	require.EqualValues(t, mib, (*Shares)(nil).Share(nil).Borrow(mib), "without Shares there is no bound")
}

// Whatever is borrowed and given back: one that was refused is woken when it would get something, and nothing is lost.
func TestF118_WhoIsRefusedIsWoken(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := NewShares(4 * mib)
		shares, refused := make([]*Share, 5), make([]bool, 5)
		for i := range shares {
			shares[i] = all.Share(func() { refused[i] = false })
		}
		for range 100 {
			i := rapid.IntRange(0, len(shares)-1).Draw(t, "share")
			s, bytes := shares[i], rapid.Int64Range(1, 2*mib).Draw(t, "bytes")
			switch rapid.SampledFrom([]string{"borrow", "add", "give", "close"}).Draw(t, "what") {
			case "borrow":
				refused[i] = s.Borrow(bytes) == 0
			case "add":
				s.Add(bytes)
			case "give":
				s.Add(-min(bytes, s.held))
			default:
				s.Close()
				refused[i] = false
			}
			sum := int64(0)
			for i, s := range shares {
				sum += s.held
				if refused[i] && s.roomLocked() > 0 {
					t.Fatalf("share %d sleeps, and there is room", i)
				}
			}
			if sum != all.Used() {
				t.Fatalf("%d bytes are held, and %d are counted", sum, all.Used())
			}
		}
	})
}

func BenchmarkBorrow(b *testing.B) {
	s := NewShares(64 * mib).Share(func() {})
	for b.Loop() {
		s.Free()
		s.Add(-s.Borrow(4 * mib))
	}
}
