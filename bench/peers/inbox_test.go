package main

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOwed(t *testing.T) {
	t.Parallel()
	commits := []change{{1, 1}, {1, 2}, {2, 1}}

	t.Run("EveryEventOfAQueue", func(t *testing.T) {
		t.Parallel()
		o := newOwed(false, commits)
		require.Equal(t, 3, o.left())
		require.True(t, o.give(change{1, 2}))
		require.False(t, o.give(change{1, 2}), "a second time")
		require.False(t, o.give(change{2, 2}), "never committed")
		require.Equal(t, 2, o.left(), "an older version stays owed")
	})
	t.Run("TheLastVersionOfAnObjectWhereTheyCoalesce", func(t *testing.T) {
		t.Parallel()
		o := newOwed(true, commits)
		require.Equal(t, 2, o.left())
		require.False(t, o.give(change{1, 1}), "an older version is not enough")
		require.True(t, o.give(change{1, 2}))
		require.True(t, o.give(change{2, 7}), "a newer one is")
		require.Zero(t, o.left())
	})
}

func TestInbox(t *testing.T) {
	t.Parallel()

	t.Run("CountsWhatCameBeforeItWasExpected", func(t *testing.T) {
		t.Parallel()
		b := &inbox{}
		b.deliver(change{1, 1})
		b.expect(false, []change{{1, 1}})
		missing, err := b.wait(t.Context(), time.Hour)
		require.NoError(t, err)
		require.Zero(t, missing)
		require.Equal(t, b.deliveries()[0].at, b.finished())
	})
	t.Run("GivesUpWhenNothingComesAndNotBefore", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := &inbox{}
			b.expect(false, []change{{1, 1}, {2, 1}, {3, 1}})
			for id := range 2 {
				time.AfterFunc(time.Duration(id+1)*8*time.Second, func() { b.deliver(change{id + 1, 1}) })
			}
			began := time.Now()
			missing, err := b.wait(t.Context(), 10*time.Second)
			require.NoError(t, err)
			require.Equal(t, 1, missing)
			require.Equal(t, 30*time.Second, time.Since(began))
			require.Equal(t, 16*time.Second, b.finished().Sub(began))
		})
	})
	t.Run("ForgetsWhatWasBefore", func(t *testing.T) {
		t.Parallel()
		b := &inbox{}
		b.deliver(change{1, 1})
		b.forget()
		b.expect(true, []change{{1, 1}})
		require.Equal(t, 1, b.owed.left())
		require.Empty(t, b.deliveries())
	})
}
