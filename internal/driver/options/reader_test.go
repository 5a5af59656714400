package options_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func getenv(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestReaderHandsOutWhatIsGiven(t *testing.T) {
	t.Parallel()

	r := options.New(driver.Options{
		"text": "x", "must": "y", "truth": false, "int": 3, "int64": int64(4), "uint64": uint64(5), "float": 6.0,
		"wait": "1m30s", "list": []any{"a", ""}, "map": map[string]any{"k": "v"},
		"group": map[string]any{"inner": "z"}, "null": nil,
	})
	require.Equal(t, "x", r.String("text", "d"))
	require.Equal(t, "y", r.Required("must"))
	require.False(t, r.Bool("truth", true))
	require.Equal(t, 3, r.Int("int", 0, 0, 9))
	require.Equal(t, 4, r.Int("int64", 0, 0, 9))
	require.Equal(t, 5, r.Int("uint64", 0, 0, 9))
	require.Equal(t, 6, r.Int("float", 0, 0, 6))
	require.Equal(t, 90*time.Second, r.Duration("wait", 0, 0, time.Hour))
	require.Equal(t, []string{"a", ""}, r.Strings("list"))
	require.Equal(t, map[string]string{"k": "v"}, r.StringMap("map"))
	group, ok := r.Group("group")
	require.True(t, ok)
	require.Equal(t, "z", group.Required("inner"))
	require.False(t, r.Has("null"))
	require.NoError(t, r.Err())
}

func TestReaderFallsBackWhereNothingIsGiven(t *testing.T) {
	t.Parallel()

	r := options.New(nil)
	require.Equal(t, "d", r.String("text", "d"))
	require.True(t, r.Bool("truth", true))
	require.Equal(t, 7, r.Int("int", 7, 0, 9))
	require.Equal(t, time.Minute, r.Duration("wait", time.Minute, 0, time.Hour))
	require.Empty(t, r.Strings("list"))
	require.Empty(t, r.StringMap("map"))
	_, ok := r.Group("group")
	require.False(t, ok)
	require.Empty(t, r.Secret("secret", getenv(nil)))
	require.NoError(t, r.Err())
}

// C64.
func TestReaderReportsEveryProblemWithItsPath(t *testing.T) {
	t.Parallel()

	r := options.New(driver.Options{
		"text": 1, "empty": "", "truth": "yes", "int": "3", "half": 1.5, "big": 10, "wait": 5, "unit": "5",
		"long": "2h", "list": "a", "items": []any{"a", 1}, "map": []any{}, "values": map[string]any{"k": true},
		"group": "x", "inner": map[string]any{"typo": 1}, "hunter2": "hunter2",
	})
	r.String("text", "")
	r.String("empty", "")
	r.Required("must")
	r.Bool("truth", true)
	r.Int("int", 0, 0, 9)
	r.Int("half", 0, 0, 9)
	r.Int("big", 0, 0, 9)
	r.Duration("wait", 0, 0, time.Hour)
	r.Duration("unit", 0, 0, time.Hour)
	r.Duration("long", 0, 100*time.Millisecond, time.Hour)
	r.Strings("list")
	r.Strings("items")
	r.StringMap("map")
	r.StringMap("values")
	r.Group("group")
	inner, _ := r.Group("inner")
	inner.String("right", "")

	var problems driver.Problems
	require.ErrorAs(t, r.Err(), &problems)
	require.Equal(t, driver.Problems{
		{Path: "options.text", Text: "must be a string, not a number"},
		{Path: "options.empty", Text: "must not be empty"},
		{Path: "options.must", Text: "is required"},
		{Path: "options.truth", Text: "must be true or false, not this string"},
		{Path: "options.int", Text: "must be a whole number, not this string"},
		{Path: "options.half", Text: "must be a whole number, not a fraction"},
		{Path: "options.big", Text: "must be between 0 and 9"},
		{Path: "options.wait", Text: `must be a duration with its unit, such as "250ms", "10s" or "5m", not a number`},
		{Path: "options.unit", Text: `must be a duration with its unit, such as "250ms", "10s" or "5m", not this string`},
		{Path: "options.long", Text: "must be between 100ms and 1h"},
		{Path: "options.list", Text: "must be a list of strings, not this string"},
		{Path: "options.items[1]", Text: "must be a string, not a number"},
		{Path: "options.map", Text: "must be a mapping of names to strings, not a list"},
		{Path: "options.values.k", Text: "must be a string, not true or false"},
		{Path: "options.group", Text: "must be a mapping, not this string"},
		{Path: "options.hunter2", Text: "unknown option; known here: big, empty, group, half, inner, int, items, list, " +
			"long, map, must, text, truth, unit, values, wait"},
		{Path: "options.inner.typo", Text: "unknown option; known here: right"},
	}, problems)
}

func TestSecretComesFromTheEnvironmentOrAFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(path, []byte("from-file\n"), 0o600))
	r := options.New(driver.Options{"a_env": "TOKEN", "b_file": path, "c_env": "lower_case", "list": []any{"PLAIN"},
		"map": map[string]any{"k": "TOKEN"}})
	env := getenv(map[string]string{"TOKEN": " from-env ", "lower_case": "x", "PLAIN": " kept "})
	require.Equal(t, options.Secret{Value: "from-env", Label: "TOKEN"}, r.Secret("a", env))
	require.Equal(t, options.Secret{Value: "from-file", Label: "options.b_file"}, r.RequiredSecret("b", env))
	require.Equal(t, options.Secret{Value: "x", Label: "options.c_env"}, r.RequiredSecret("c", env))
	require.Equal(t, map[string]options.Secret{"k": {Value: "from-env", Label: "TOKEN"}}, r.SecretMap("map", env))
	require.Equal(t, map[string]string{"PLAIN": " kept "}, r.EnvList("list", env))
	require.NoError(t, r.Err())
}

// C64, C69: a secret in the place of its variable's name is not repeated.
func TestSecretProblemsNameTheOptionAndNeverTheValue(t *testing.T) {
	t.Parallel()

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte(" \n"), 0o600))
	r := options.New(driver.Options{
		"unset_env": "NOT_SET", "value_env": "whsec_c2VjcmV0", "odd_env": "a b", "hex_env": "c0ffee", "gone_file": "/c0ffee/x",
		"empty_file": empty, "two_env": "A", "two_file": "b", "map": map[string]any{"k": "NOT_SET"},
		"list": []any{"A=b", "NOT_SET"}, "typed_env": 5,
	})
	env := getenv(nil)
	for _, name := range []string{"unset", "value", "odd", "hex", "gone", "empty", "two", "typed"} {
		require.Empty(t, r.Secret(name, env).Value)
	}
	r.SecretMap("map", env)
	require.Empty(t, r.EnvList("list", env))
	r.RequiredSecret("must", env)
	require.Equal(t, driver.Problems{
		{Path: "options.unset_env", Text: "the environment variable NOT_SET is not set"},
		{Path: "options.value_env", Text: "the environment variable that it names is not set"},
		{Path: "options.odd_env", Text: "must be the name of an environment variable (letters, digits and _), not its value"},
		{Path: "options.hex_env", Text: "the environment variable that it names is not set"},
		{Path: "options.gone_file", Text: "the file cannot be read: no such file or directory"},
		{Path: "options.empty_file", Text: "the file is empty"},
		{Path: "options.two_env", Text: "cannot stand beside options.two_file: give one of the two"},
		{Path: "options.typed_env", Text: "must be a string, not a number"},
		{Path: "options.map.k", Text: "the environment variable NOT_SET is not set"},
		{Path: "options.list", Text: "must be the name of an environment variable (letters, digits and _), not its value"},
		{Path: "options.list", Text: "the environment variable NOT_SET is not set"},
		{Path: "options.must_env", Text: "is required: the name of the environment variable that holds it (or options.must_file)"},
	}, r.Err())
}
