package desired_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/desired"
)

func TestSplitKeyIsTheInverseOfJoinKey(t *testing.T) {
	t.Parallel()
	// Letters that mean something to the encoding come often.
	part := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune{'/', '\\', 'a'}), 0, 6, -1))
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(part, 1, 8).Draw(t, "parts")
		split, ok := desired.SplitKey(desired.JoinKey(parts), len(parts))
		require.True(t, ok)
		require.Equal(t, parts, split)
	})
}

func TestJoinKeyNamesDifferentRowsDifferently(t *testing.T) {
	t.Parallel()
	part := rapid.StringOfN(rapid.SampledFrom([]rune{'/', '\\', 'a'}), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		parts := rapid.SliceOfN(part, 2, 2)
		one, other := parts.Draw(t, "one"), parts.Draw(t, "other")
		require.Equal(t, one[0] == other[0] && one[1] == other[1], desired.JoinKey(one) == desired.JoinKey(other))
	})
}

func TestSplitKeyRefusesWhatNoRowCanHave(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key string
		n   int
	}{{"a", 2}, {"a/b/c", 2}, {"a/b", 3}, {`a\b/c`, 2}, {`a/b\`, 2}, {"", 2}, {`a\/b`, 2}} {
		_, ok := desired.SplitKey(c.key, c.n)
		require.False(t, ok, "%q as a key of %d columns", c.key, c.n)
	}
	for _, key := range []string{"", "a", "a/b", `\`, `a\b`} {
		split, ok := desired.SplitKey(key, 1)
		require.True(t, ok)
		require.Equal(t, []string{key}, split, "the key of one column is its text")
	}
}
