package drivers_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryKindIsThere(t *testing.T) {
	t.Parallel()

	all := drivers.All()
	require.Equal(t, []string{"discard", "exec", "file", "kubernetes", "postgres", "stream", "webhook"}, all.Names())
	for _, kind := range all {
		found, ok := all.Lookup(kind.Name)
		require.True(t, ok)
		d, err := found.Open("test", driver.Options{"no-such-option": 1}, driver.Env{Getenv: func(string) string { return "" }})
		require.Nil(t, d)
		var problems driver.Problems
		require.ErrorAs(t, err, &problems)
		paths := map[string]bool{}
		for _, p := range problems {
			require.NotEmpty(t, p.Text)
			paths[p.Path] = true
		}
		require.True(t, paths["options.no-such-option"], "%s takes any option", kind.Name)
		require.Equal(t, kind.Name == "discard" || kind.Name == "stream", len(problems) == 1, "options that %s needs", kind.Name)
	}
}
