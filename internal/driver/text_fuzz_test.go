package driver_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// FuzzStringSpec: the spec of a text means that text, and writing what was read changes nothing.
func FuzzStringSpec(f *testing.F) {
	for _, seed := range []string{"", "plain", "a\"b\\c", "\b\f\n\r\t", "\x00\x1f\x7f", "</script>&", "\u2028\U0001F600", "\\u0041", "\xff"} {
		f.Add(seed, len(seed)/2)
	}
	f.Fuzz(func(t *testing.T, text string, cut int) {
		if !utf8.ValidString(text) {
			return // no text of a database
		}
		spec := driver.StringSpec([]byte(text))
		var meant string
		require.NoError(t, json.Unmarshal(spec, &meant))
		require.Equal(t, text, meant)
		back, ok, err := driver.SpecText(spec)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, text, back)
		require.Equal(t, string(spec), string(driver.StringSpec([]byte(back))))
		cut = min(max(cut, 0), len(text))
		pieces := driver.AppendEscaped(driver.AppendEscaped([]byte{'"'}, []byte(text[:cut])), []byte(text[cut:]))
		require.Equal(t, string(spec), string(append(pieces, '"')))
	})
}

// FuzzSpecText: a spec is a text exactly if it is a JSON string, and then it is that one.
func FuzzSpecText(f *testing.F) {
	for _, seed := range []string{`""`, `"a"`, `{"a": 1}`, `[]`, `null`, `"cut`, `"\u0041\ud83d\ude00"`, `"\ud800"`, `"a" `, `"a""b"`, "\"\xff\"", ""} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		text, ok, err := driver.SpecText(spec)
		require.False(t, ok && err != nil)
		require.Equal(t, json.Valid(spec) && spec[0] == '"', ok)
		if ok {
			again, ok, err := driver.SpecText(driver.StringSpec([]byte(text)))
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, text, again)
		}
	})
}

// FuzzSnippet: foreign text becomes a short line. C69: one that shows none of the secrets.
func FuzzSnippet(f *testing.F) {
	for _, seed := range []string{"", "two\r\n\tlines\x00", strings.Repeat("é", 40), "\xff\xfe", "\u2028\u0085"} {
		f.Add([]byte(seed), []byte(seed), uint8(10))
	}
	f.Fuzz(func(t *testing.T, before, behind []byte, limit uint8) {
		const secret = "hunter2-and-more"
		s := driver.NewScrubber(map[string]string{secret: "PASSWORD", "hunter2": "OTHER", "abc": "SHORT"})
		text := []byte(s.Text(string(before) + secret + string(behind)))
		most := max(int(limit), 3)
		for _, got := range []string{driver.Snippet(text, most), driver.SnippetTail(text, most)} {
			require.LessOrEqual(t, len(got), most)
			require.True(t, utf8.ValidString(got), "%q", got)
			require.Equal(t, -1, strings.IndexFunc(got, unicode.IsControl), "%q", got)
			require.NotContains(t, got, secret)
		}
	})
}
