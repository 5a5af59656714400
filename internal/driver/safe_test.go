package driver_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

type lister func(yield func(driver.Listed, error) bool)

func (l lister) List(context.Context, []string) iter.Seq2[driver.Listed, error] {
	return iter.Seq2[driver.Listed, error](l)
}

func TestF80_APanicOfADriverIsAnError(t *testing.T) {
	t.Parallel()
	err := driver.Safely(func() error { panic("boom\nmore") })
	panicked, ok := errors.AsType[*driver.PanicError](err)
	require.True(t, ok)
	require.Equal(t, "the driver panicked: boom", panicked.Short())
	require.True(t, strings.HasPrefix(err.Error(), "the driver panicked: boom\ngoroutine "), err.Error())
	require.ErrorContains(t, err, "safe_test.go")
	refused := errors.New("refused")
	require.Equal(t, refused, driver.Safely(func() error { return refused }))
	require.NoError(t, driver.Safely(func() error { return nil }))
}

// silent lists an object and then nothing more, until it is told to stop.
type silent struct{}

func (silent) List(ctx context.Context, _ []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		if yield(driver.Listed{Key: "a"}, nil) {
			<-ctx.Done()
			yield(driver.Listed{}, context.Cause(ctx))
		}
	}
}

func TestF81_AListingThatFallsSilentIsStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, found := time.Now(), 0
		var last error
		for _, err := range driver.List(t.Context(), silent{}, []string{"apps"}) {
			if last = err; err == nil {
				found++
				time.Sleep(time.Hour) // of the test's clock: the consumer of the objects may take long
			}
		}
		require.EqualError(t, last, "it named no object for 15m0s")
		require.Equal(t, 1, found)
		require.Equal(t, 75*time.Minute, time.Since(began))
	})
}

func TestF80_APanicOfAListingEndsItWithAnError(t *testing.T) {
	t.Parallel()
	l := lister(func(yield func(driver.Listed, error) bool) {
		if yield(driver.Listed{Key: "a"}, nil) {
			panic("boom")
		}
		panic("after the end")
	})
	var keys []string
	var last error
	for one, err := range driver.List(t.Context(), l, []string{"apps"}) {
		keys, last = append(keys, one.Key), err
	}
	require.Equal(t, []string{"a", ""}, keys)
	require.ErrorContains(t, last, "the driver panicked: boom\n")
	for _, err := range driver.List(t.Context(), l, []string{"apps"}) {
		require.NoError(t, err)
		break // what the driver does behind it is no business of the loop's
	}
	require.PanicsWithValue(t, "ours", func() {
		for _, err := range driver.List(t.Context(), l, []string{"apps"}) {
			require.NoError(t, err)
			panic("ours")
		}
	})
}
