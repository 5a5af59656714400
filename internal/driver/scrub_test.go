package driver_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// C69.
func TestScrubberHidesEverySecret(t *testing.T) {
	t.Parallel()

	s := driver.NewScrubber(map[string]string{"hunter2": "PASSWORD", "hunter2-and-more": "TOKEN", "abc": "SHORT", "": "NONE"})
	require.Equal(t, "a [TOKEN] b [PASSWORD] abc", s.Text("a hunter2-and-more b hunter2 abc"))
	require.Equal(t, "kept hunter2", driver.Scrubber{}.Text("kept hunter2"))
}

func TestScrubberKeepsAnErrorThatHoldsNoSecret(t *testing.T) {
	t.Parallel()

	s := driver.NewScrubber(map[string]string{"hunter2": "PASSWORD"})
	require.Equal(t, driver.Done(), s.Outcome(driver.Done()))
	require.ErrorIs(t, s.Outcome(driver.Backoff(fs.ErrExist)).Err, fs.ErrExist)

	hidden := s.Outcome(driver.Terminal(errors.New("bad password hunter2")))
	require.Equal(t, driver.VerdictTerminal, hidden.Verdict)
	require.EqualError(t, hidden.Err, "bad password [PASSWORD]")
}

func TestSnippet(t *testing.T) {
	t.Parallel()

	require.Equal(t, "two lines", driver.Snippet([]byte("two\r\n\tlines\x00\n"), 20))
	require.Equal(t, "abcdefg...", driver.Snippet([]byte("abcdefghijklm"), 10))
	require.Equal(t, "...ghijklm", driver.SnippetTail([]byte("abcdefghijklm"), 10))
	require.Equal(t, "exactly 10", driver.Snippet([]byte("exactly 10"), 10))
	require.Equal(t, "exactly 10", driver.SnippetTail([]byte("exactly 10"), 10))
	require.Equal(t, "a\uFFFDb", driver.Snippet([]byte("a\xffb"), 10))
}

func TestSnippetIsShortAndValid(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SliceOf(rapid.Byte()).Draw(t, "text")
		if rapid.Bool().Draw(t, "unicode") {
			text = []byte(rapid.String().Draw(t, "string"))
		}
		limit := rapid.IntRange(3, 40).Draw(t, "limit")
		for _, got := range []string{driver.Snippet(text, limit), driver.SnippetTail(text, limit)} {
			require.LessOrEqual(t, len(got), limit)
			require.True(t, utf8.ValidString(got))
			require.False(t, strings.ContainsAny(got, "\x00\n\r"))
		}
	})
}
