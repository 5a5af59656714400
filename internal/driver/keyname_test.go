package driver_test

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func TestEncodeKey(t *testing.T) {
	t.Parallel()

	for key, want := range map[string]string{
		"":                               "%",
		"web-1":                          "web-1",
		"A.b_c-9":                        "A.b_c-9",
		"_":                              "_",
		"a..b":                           "a..b",
		"a.json":                         "a.json",
		".":                              "%2E",
		"..":                             "%2E.",
		"-rf":                            "%2Drf",
		".hidden":                        "%2Ehidden",
		"../../etc/passwd":               "%2E.%2F..%2Fetc%2Fpasswd",
		"/etc/passwd":                    "%2Fetc%2Fpasswd",
		`a\b`:                            "a%5Cb",
		"%":                              "%25",
		"%41":                            "%2541",
		"'; drop table x; --":            "%27%3B%20drop%20table%20x%3B%20--",
		"a\x00b":                         "a%00b",
		"köln":                           "k%C3%B6ln",
		"\xff\xfe":                       "%FF%FE",
		"new\nline":                      "new%0Aline",
		"C:":                             "C%3A",
		strings.Repeat("a", 200):         strings.Repeat("a", 200),
		strings.Repeat("a", 201):         strings.Repeat("a", 200) + "%/a",
		strings.Repeat("a", 401):         strings.Repeat("a", 200) + "%/" + strings.Repeat("a", 200) + "%/a",
		strings.Repeat("é", 34):          strings.Repeat("%C3%A9", 33) + "%/%C3%A9",
		strings.Repeat("a", 200) + ".":   strings.Repeat("a", 200) + "%/%2E",
		strings.Repeat("a", 200) + "-x":  strings.Repeat("a", 200) + "%/%2Dx",
		strings.Repeat("a", 199) + "é":   strings.Repeat("a", 199) + "%/%C3%A9",
		strings.Repeat("a", 200) + "../": strings.Repeat("a", 200) + "%/%2E.%2F",
	} {
		require.Equal(t, want, driver.EncodeKey(key), "key %q", key)
		back, err := driver.DecodeKey(want)
		require.NoError(t, err)
		require.Equal(t, key, back)
	}
}

func TestDecodeKeyRefusesWhatIsNoEncoding(t *testing.T) {
	t.Parallel()

	for name, encoded := range map[string]string{
		"nothing":                   "",
		"dot":                       ".",
		"parent":                    "..",
		"hidden file":               ".profile",
		"leading dash":              "-rf",
		"slash without a mark":      "a/b",
		"space":                     "a b",
		"lower-case digits":         "k%c3%b6ln",
		"needless escape":           "%41",
		"escape cut off":            "a%2",
		"escape of no digits":       "a%ZZ",
		"percent at the end":        "a%",
		"raw unicode":               "köln",
		"NUL":                       "a\x00",
		"empty part":                "%/a",
		"cut too early":             "a%/b",
		"long and not cut":          strings.Repeat("a", 201),
		"cut at the wrong place":    strings.Repeat("a", 201) + "%/a",
		"nothing after the cut":     strings.Repeat("a", 200) + "%/",
		"only a marked part":        strings.Repeat("a", 200) + "%",
		"dot after the cut":         strings.Repeat("a", 200) + "%/.",
		"parent behind a long part": strings.Repeat("a", 200) + "%/../x",
	} {
		key, err := driver.DecodeKey(encoded)
		require.Error(t, err, name)
		require.Empty(t, key, name)
	}
	_, err := driver.DecodeKey("a/b")
	require.EqualError(t, err, `"a/b" is not the encoding of a key`)
}

// C68.
func TestEncodeKeyNeverLeavesItsDirectory(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		requireContained(t, anyKey().Draw(t, "key"))
	})
}

func TestEncodeKeyIsReversible(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		key := anyKey().Draw(t, "key")
		back, err := driver.DecodeKey(driver.EncodeKey(key))
		require.NoError(t, err)
		require.Equal(t, key, back)
	})
}

func TestNoKeysFileIsAnotherKeysDirectory(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		short := anyKey().Draw(t, "short")
		// Continuations of one another, also by what looks like an extension or a mark, are the dangerous pairs.
		long := short + rapid.SampledFrom([]string{".json", "%", "/", ".json/", "%/", "x"}).Draw(t, "join") +
			anyKey().Draw(t, "rest")
		require.NotEqual(t, driver.EncodeKey(short), driver.EncodeKey(long))
		require.False(t, strings.HasPrefix(driver.EncodeKey(long)+".json", driver.EncodeKey(short)+".json/"))
	})
}

func FuzzDecodeKey(f *testing.F) {
	for _, seed := range []string{"", "%", "web-1", "%2E.", "a%", "../x", strings.Repeat("a", 200) + "%/b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		requireContained(t, text)
		back, err := driver.DecodeKey(driver.EncodeKey(text))
		require.NoError(t, err)
		require.Equal(t, text, back)
		if key, err := driver.DecodeKey(text); err == nil {
			require.Equal(t, text, driver.EncodeKey(key))
		}
	})
}

func requireContained(t require.TestingT, key string) {
	encoded := driver.EncodeKey(key)
	require.True(t, filepath.IsLocal(encoded), "%q", encoded)
	require.Equal(t, encoded, path.Clean(encoded))
	for part := range strings.SplitSeq(encoded, "/") {
		require.Regexp(t, `^[A-Za-z0-9_%][A-Za-z0-9._%-]*$`, part)
		require.LessOrEqual(t, len(part), 201)
	}
}

func anyKey() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[A-Za-z0-9._-]{0,300}`),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 500), func(b []byte) string { return string(b) }),
		rapid.SampledFrom([]string{"..", "/", "%", "%2F", ".json", "-", "\x00", "é", strings.Repeat("a", 200)}),
	)
	return rapid.Map(rapid.SliceOfN(part, 0, 5), func(parts []string) string { return strings.Join(parts, "") })
}
