package desired_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// A spec that is too large is not sent, and its object says so; others are read beside it.
func TestF17_SpecThatIsTooLargeIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE apps (id int PRIMARY KEY, body text); INSERT INTO apps VALUES (1, repeat('x', 1048574)), (2, repeat('x', 1048575)), (3, repeat('x', 10000000)), (4, NULL);
		SELECT reconciler.track('app', 'apps', '{id}', $$'eu'$$, spec => 'to_jsonb(body)')`)
	rows, err := w.resource(t, "app").Read(t.Context(), w.Pool, "eu", targetEU, []string{"1", "2", "3", "4"})
	require.NoError(t, err)
	require.Len(t, rows[0].Spec, desired.SpecMost)
	require.NoError(t, rows[0].Err)
	for i, bytes := range map[int]int{1: 1048577, 2: 10000002} {
		require.EqualError(t, rows[i].Err, fmt.Sprintf("its spec has %d bytes; the largest that is applied has 1048576", bytes))
		require.Empty(t, rows[i].Spec)
		require.False(t, rows[i].Wanted)
	}
	require.EqualError(t, rows[3].Err, "its spec is null")
}
