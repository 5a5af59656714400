package driver_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// The right-hand sides are what PostgreSQL answers to `select to_jsonb($1::text)::text`; the postgres driver's
// tests ask a server for every character.
func TestStringSpecIsPostgresTextForm(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"":                       `""`,
		"plain":                  `"plain"`,
		"a\"b\\c":                `"a\"b\\c"`,
		"\b\f\n\r\t":             `"\b\f\n\r\t"`,
		"\x01\x1f\x7f":           "\"\\u0001\\u001f\x7f\"",
		"</script>&":             `"</script>&"`,
		"köln \u2028 \U0001F600": "\"köln \u2028 \U0001F600\"",
	} {
		require.Equal(t, want, string(driver.StringSpec([]byte(text))))
	}
}

func TestSpecTextReversesStringSpec(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		back, ok, err := driver.SpecText(driver.StringSpec([]byte(text)))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, text, back)
	})
}

func TestSpecTextOfOtherSpecs(t *testing.T) {
	t.Parallel()

	for _, spec := range []string{`{"a": "b"}`, `[1]`, `12`, `true`, `null`} {
		text, ok, err := driver.SpecText(json.RawMessage(spec))
		require.NoError(t, err)
		require.False(t, ok)
		require.Empty(t, text)
	}
	_, _, err := driver.SpecText(json.RawMessage(`"cut`))
	require.EqualError(t, err, "the spec begins as a JSON string but is not one")
	_, _, err = driver.SpecText(nil)
	require.EqualError(t, err, "the spec is empty")
}
