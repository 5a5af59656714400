package desired_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// FuzzSplitKey: a text is the key of at most one row, and the one that it splits into has that key.
func FuzzSplitKey(f *testing.F) {
	for _, seed := range []string{"", "a", "a/b", `a\/b/c`, `\\/`, `\`, `a\b`, "//", "\x00/\xff", `\\\/`} {
		for n := range uint8(4) {
			f.Add(seed, n)
		}
	}
	f.Fuzz(func(t *testing.T, key string, columns uint8) {
		n := int(columns%16) + 1
		parts, ok := desired.SplitKey(key, n)
		if !ok {
			return
		}
		require.Len(t, parts, n)
		require.Equal(t, key, desired.JoinKey(parts))
		for other := 2; other <= 17; other++ {
			if n > 1 && other != n {
				_, ok := desired.SplitKey(key, other)
				require.False(t, ok, "%q is a key of %d and of %d columns", key, n, other)
			}
		}
	})
}
