package file

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// bubble is a reloader under a fake clock, with a command that the test answers.
type bubble struct {
	*reloader
	began time.Time

	mu     sync.Mutex
	runs   []time.Duration     // guarded by mu: since began
	answer func(run int) error // guarded by mu
	log    bytes.Buffer        // guarded by mu
}

func inBubble(t *testing.T, debounce time.Duration, test func(t *testing.T, b *bubble)) {
	owed := filepath.Join(t.TempDir(), reloadOwedName)
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{began: time.Now(), answer: func(int) error { return nil }}
		logger := slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))
		b.reloader = startReloader(b.run, debounce, owed, logger)
		test(t, b)
	})
}

// run is the command.
func (b *bubble) run(context.Context) error {
	b.mu.Lock()
	b.runs = append(b.runs, time.Since(b.began))
	run, answer := len(b.runs), b.answer
	b.mu.Unlock()
	return answer(run)
}

func (b *bubble) answers(answer func(run int) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

func (b *bubble) ran() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.runs)
}

// Write takes the log.
func (b *bubble) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.Write(line)
}

func (b *bubble) logged() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.log.String()
}

func (b *bubble) change() {
	b.begin()
	b.end(true)
}

// wait lets time pass.
func (b *bubble) wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestABurstOfChangesIsOneReload(t *testing.T) {
	t.Parallel()

	inBubble(t, 100*time.Millisecond, func(t *testing.T, b *bubble) {
		for range 20 {
			b.change()
			b.wait(10 * time.Millisecond)
		}
		b.wait(time.Minute)
		require.Equal(t, []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, b.ran())
		b.change()
		b.wait(99 * time.Millisecond)
		require.Len(t, b.ran(), 2)
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 3)
		require.NoError(t, b.close(t.Context()))
		require.Len(t, b.ran(), 3)
		require.Empty(t, b.logged(), "success is quiet")
	})
}

func TestAChangeDuringAReloadIsFollowedByAnother(t *testing.T) {
	t.Parallel()

	inBubble(t, 0, func(t *testing.T, b *bubble) {
		b.answers(func(run int) error {
			if run == 1 {
				b.change()
			}
			return nil
		})
		b.change()
		b.wait(time.Second)
		require.Len(t, b.ran(), 2)
		require.NoError(t, b.close(t.Context()))
		require.Len(t, b.ran(), 2)
	})
}

func TestAChangeThatWasNotMadeReloadsNothing(t *testing.T) {
	t.Parallel()

	inBubble(t, 0, func(t *testing.T, b *bubble) {
		b.start()
		b.begin()
		b.end(false)
		b.wait(time.Minute)
		require.Empty(t, b.ran())
		require.NoError(t, b.close(t.Context()))
		require.Empty(t, b.ran())
	})
}

func TestAFailedReloadIsTriedAgainAndShown(t *testing.T) {
	t.Parallel()

	inBubble(t, 0, func(t *testing.T, b *bubble) {
		b.answers(func(run int) error {
			if run < 8 {
				return errors.New("syntax error")
			}
			return nil
		})
		b.change()
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 1)
		require.EqualError(t, b.failure(), "syntax error")
		require.Equal(t, "level=WARN msg=reload_failed error=\"syntax error\" retry_in=1s\n", b.logged())
		b.change() // does not cut the pause short
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 1)

		b.wait(2 * time.Minute)
		require.Len(t, b.ran(), 8)
		require.NoError(t, b.failure())
		require.Contains(t, b.logged(), "retry_in=8s\n")
		require.NotContains(t, b.logged(), "retry_in=16s\n")
		require.Contains(t, b.logged(), "level=INFO msg=reload_works_again\n")
		for i := range len(b.ran()) - 1 {
			pause := min(time.Second<<i, reloadRetryMax)
			require.GreaterOrEqual(t, b.ran()[i+1]-b.ran()[i], pause/2)
			require.LessOrEqual(t, b.ran()[i+1]-b.ran()[i], pause*3/2)
		}
		require.NoError(t, b.close(t.Context()))
		require.Len(t, b.ran(), 8)
	})
}

func TestCloseRunsAReloadThatIsOwed(t *testing.T) {
	t.Parallel()

	for name, debounce := range map[string]time.Duration{"WhileChangesAreCollected": time.Minute, "WhileItFails": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			inBubble(t, debounce, func(t *testing.T, b *bubble) {
				if debounce == 0 {
					b.answers(func(int) error { return errors.New("not ready") })
				}
				b.change()
				b.wait(100 * time.Millisecond)
				before := len(b.ran())
				b.answers(func(int) error { return nil })
				require.NoError(t, b.close(t.Context()))
				require.Len(t, b.ran(), before+1)
				require.Equal(t, 100*time.Millisecond, time.Since(b.began), "without waiting")
				require.NoFileExists(t, b.owedPath)
				require.NoError(t, b.close(t.Context()), "a second Close does nothing")
				require.Len(t, b.ran(), before+1)
			})
		})
	}
}

func TestCloseSaysThatTheLastReloadFailed(t *testing.T) {
	t.Parallel()

	inBubble(t, time.Minute, func(t *testing.T, b *bubble) {
		b.answers(func(int) error { return errors.New("syntax error") })
		b.change()
		synctest.Wait()
		require.EqualError(t, b.close(t.Context()), "syntax error")
		require.Len(t, b.ran(), 1)
		require.FileExists(t, b.owedPath, "the next process makes it good")
	})
}

// C33: killed between the change and the reload.
func TestAReloadThatAKilledProcessOwedIsMadeGood(t *testing.T) {
	t.Parallel()

	inBubble(t, time.Minute, func(t *testing.T, killed *bubble) {
		killed.answers(func(int) error { return errors.New("killed") })
		killed.change()
		require.FileExists(t, killed.owedPath)
		synctest.Wait()
		require.Error(t, killed.close(t.Context()))

		runs := 0
		next := startReloader(func(context.Context) error { runs++; return nil }, 0, killed.owedPath, slog.New(slog.DiscardHandler))
		synctest.Wait()
		require.Zero(t, runs, "opening a driver does nothing")
		next.start()
		synctest.Wait()
		require.Equal(t, 1, runs)
		require.NoFileExists(t, killed.owedPath)
		next.start()
		synctest.Wait()
		require.NoError(t, next.close(t.Context()))
		require.Equal(t, 1, runs)
	})
}

// Another process owned the target for a while, and was killed between the change and the reload.
func TestF84_AReloadThatAnotherProcessOwedIsMadeGoodByAnOldOne(t *testing.T) {
	t.Parallel()

	inBubble(t, time.Second, func(t *testing.T, b *bubble) {
		b.start()
		b.change()
		b.wait(time.Minute)
		require.Len(t, b.ran(), 1)
		require.NoError(t, leaveWord(b.owedPath))
		b.start()
		b.wait(time.Minute)
		require.Len(t, b.ran(), 2)
		require.NoFileExists(t, b.owedPath)
		require.NoError(t, b.close(t.Context()))
	})
}

func TestWordOfAReloadStaysUntilEveryChangeIsCovered(t *testing.T) {
	t.Parallel()

	inBubble(t, 0, func(t *testing.T, b *bubble) {
		b.answers(func(int) error {
			b.begin() // a change that begins during the run
			return nil
		})
		b.change()
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 1)
		require.FileExists(t, b.owedPath)
		b.answers(func(int) error { return nil })
		b.change()
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 2)
		require.FileExists(t, b.owedPath, "the change of the first run has not ended")
		b.end(true)
		b.wait(time.Millisecond)
		require.Len(t, b.ran(), 3)
		require.NoFileExists(t, b.owedPath)
		require.NoError(t, b.close(t.Context()))
	})
}
