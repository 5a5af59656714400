package budget

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func ready(l *Loan) bool {
	select {
	case <-l.Ready:
		return true
	default:
		return false
	}
}

func TestPoolLendsInOrder(t *testing.T) {
	t.Parallel()
	p := NewPool(100)
	a, b, c := p.Take(60), p.Take(50), p.Take(1)
	require.True(t, ready(a))
	require.False(t, ready(b))
	require.False(t, ready(c), "a small request does not pass a large one")
	require.Nil(t, p.TryTake(1))
	a.Set(30)
	require.True(t, ready(b))
	require.True(t, ready(c))
	b.Set(90)
	require.EqualValues(t, 121, p.Used(), "what was read counts, also beyond the size")
	d := p.Take(1000)
	e := p.Take(1)
	d.Return()
	require.False(t, ready(e))
	b.Return()
	b.Return()
	require.True(t, ready(e), "a request that was withdrawn holds up no other")
	for _, l := range []*Loan{a, c, d, e} {
		l.Return()
	}
	require.Zero(t, p.Used())
	whole := p.Take(1000)
	require.True(t, ready(whole))
	require.EqualValues(t, 100, p.Used())
	whole.Return()
	tried := p.TryTake(50)
	require.NotNil(t, tried)
	require.True(t, p.HalfLent())
	require.Nil(t, p.TryTake(1), "the other half is for those who wait")
	tried.Return()
	require.Zero(t, p.Used())
}
