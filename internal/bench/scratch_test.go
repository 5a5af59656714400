package bench

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

func TestAnotherDatabaseOfTheSameServer(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"URL":           "postgres://app@db:6543/shop?sslmode=disable",
		"URLWithout":    "postgres://app@db:6543?sslmode=disable",
		"URLPassword":   "postgresql://app:p%40ss%2F%27@db:6543/shop?sslmode=disable",
		"URLParameters": "postgres://db:6543/?sslmode=disable&dbname=shop&application_name=a+b%20c&user=app&password=p%20w",
		"Pairs":         "host=db port=6543 user=app dbname=shop sslmode=disable",
		"PairsPassword": `host=db port=6543 user=app dbname='shop' password='it\'s \\' sslmode=disable`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, err := pgx.ParseConfig(raw)
			require.NoError(t, err)
			other, err := withDatabase(raw, "other")
			require.NoError(t, err)
			have, err := pgx.ParseConfig(other)
			require.NoError(t, err)
			require.Equal(t, "other", have.Database)
			require.Equal(t, []any{want.Host, want.Port, want.User, want.Password, want.TLSConfig, want.RuntimeParams},
				[]any{have.Host, have.Port, have.User, have.Password, have.TLSConfig, have.RuntimeParams})
		})
	}

	t.Run("KeepsWhatItCannotReadToItself", func(t *testing.T) {
		t.Parallel()
		_, err := withDatabase("postgres://app:secret@db:port/shop", "other")
		require.EqualError(t, err, "the database URL cannot be read: expected postgres://user@host:port/database or key=value pairs")
	})
}

// A password file may name the database, and a new one is not in it.
func TestAnotherDatabaseTakesThePasswordAlong(t *testing.T) {
	t.Setenv("PGPASSWORD", `it's \ here`)
	urls := map[string]string{}
	for _, raw := range []string{"postgres://app@db/shop", "host=db user=app dbname=shop"} {
		var err error
		urls[raw], err = withDatabase(raw, "other")
		require.NoError(t, err)
	}
	t.Setenv("PGPASSWORD", "")
	for raw, other := range urls {
		have, err := pgx.ParseConfig(other)
		require.NoError(t, err)
		require.Equal(t, `it's \ here`, have.Password, raw)
	}
}
