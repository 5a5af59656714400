package apply

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestRunWaitsForEveryObject(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run := &Run{}
		require.NoError(t, run.Wait(t.Context()), "nothing was asked for")
		run.add(false)
		run.add(false)
		waited := make(chan error, 1)
		go func() { waited <- run.Wait(t.Context()) }()
		run.done(true)
		synctest.Wait()
		require.Empty(t, waited)
		run.done(true)
		require.NoError(t, <-waited)

		run.add(false)
		run.done(false)
		require.ErrorIs(t, run.Wait(t.Context()), ErrRunCut)
	})
}

func TestRunWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	run := &Run{}
	run.add(false)
	require.ErrorIs(t, run.Wait(ctx), why)
}
