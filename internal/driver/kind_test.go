package driver_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestRegistryFindsKindsByName(t *testing.T) {
	t.Parallel()

	registry := driver.Registry{{Name: "webhook"}, {Name: "file"}}
	kind, ok := registry.Lookup("file")
	require.True(t, ok)
	require.Equal(t, "file", kind.Name)
	_, ok = registry.Lookup("ftp")
	require.False(t, ok)
	require.Equal(t, []string{"file", "webhook"}, registry.Names())
}

func TestProblemsAreShownOnePerLine(t *testing.T) {
	t.Parallel()

	require.EqualError(t, driver.Problems{
		{Path: "options.dir", Text: "is required"}, {Path: "options.mode", Text: "must be octal"},
	}, "options.dir: is required\noptions.mode: must be octal")
}

func TestEnvAlwaysHasALogger(t *testing.T) {
	t.Parallel()

	require.Same(t, slog.Default(), driver.Env{}.Log())
	own := slog.New(slog.DiscardHandler)
	require.Same(t, own, driver.Env{Logger: own}.Log())
}

func TestOutcomeAlwaysHasAReason(t *testing.T) {
	t.Parallel()

	require.NoError(t, driver.Done().Err)
	cause := errors.New("cause")
	for want, got := range map[driver.Verdict]driver.Outcome{
		driver.VerdictBackoff:     driver.Backoff(cause),
		driver.VerdictRetryAfter:  driver.RetryAfter(-time.Second, cause),
		driver.VerdictTerminal:    driver.Terminal(cause),
		driver.VerdictUnreachable: driver.Unreachable(cause),
	} {
		require.Equal(t, driver.Outcome{Verdict: want, Err: cause}, got)
	}
	require.Equal(t, 3*time.Second, driver.RetryAfter(3*time.Second, cause).After)
	require.EqualError(t, driver.Backoff(nil).Err, "the driver gave no reason")
}

func TestVerdictNames(t *testing.T) {
	t.Parallel()

	for verdict, want := range map[driver.Verdict]string{
		driver.VerdictDone: "done", driver.VerdictBackoff: "backoff", driver.VerdictRetryAfter: "retry_after",
		driver.VerdictTerminal: "terminal", driver.VerdictUnreachable: "unreachable", 9: "verdict(9)",
	} {
		require.Equal(t, want, verdict.String())
	}
}

func TestHashSpec(t *testing.T) {
	t.Parallel()

	// printf '{"a": 1}' | sha256sum | cut -c 1-32
	require.Equal(t, "f9d86028c6e0d64e225186f96acb6933", driver.HashSpec([]byte(`{"a": 1}`)).String())
}
