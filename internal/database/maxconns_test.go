package database

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func TestURLBoundsThePool(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, test := range []struct {
		setting     string
		most, bound int32
	}{
		{"", 8, 8},
		{"&pool_max_conns=3", 8, 3},
		{"&pool_max_conns=3", 0, 3},
		{"&pool_max_conns=100", 8, 8},
		{"&pool_max_conns=100", 0, 4},
		{"&pool_max_conns=1", 8, minConns},
	} {
		pool, err := NewPool(t.Context(), db.URL+test.setting, Options{MaxConns: test.most})
		require.NoError(t, err, test.setting)
		require.Equal(t, test.bound, pool.Config().MaxConns, "%s of %d", test.setting, test.most)
		pool.Close()
	}
	conn, err := Connect(t.Context(), db.URL+"&pool_max_conns=3", Options{})
	require.NoError(t, err, "one connection has no use for the setting, and the server does not know it")
	require.NoError(t, conn.Close(t.Context()))
}
