package options_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

// FuzzReader: whatever stands in a config file, what is handed out keeps its bounds. C69: and no text repeats a value.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a": "x"}`, `{"a": 3}`, `{"a": 1e300, "b": -0.0}`, `{"a": "1h", "b": "9999999h"}`, `{"a": ["x", 1, null]}`, `{"a": {"b": "x"}, "b": null}`,
		`{"a_env": "HOME", "a_file": "/"}`, `{"a_env": "not a name"}`, `{"b_env": ["A", 1]}`, `{"": "", "a": true}`, `{"a": 9007199254740993}`, `{"a": {"a": {"a": []}}}`,
	} {
		f.Add([]byte(seed), "value")
	}
	f.Fuzz(func(t *testing.T, text []byte, value string) {
		var opts map[string]any
		if json.Unmarshal(text, &opts) != nil || len(opts) == 0 {
			return
		}
		const marker = "hunter2-marker"
		for name, have := range opts {
			if _, isText := have.(string); isText && name != "a_file" { // a path is looked up, and no file has this name
				opts[name] = marker + value
			}
		}
		for _, name := range []string{"a", "b"} {
			r := options.New(driver.Options(opts))
			readAll(t, r, name)
			if group, ok := r.Group(name); ok {
				readAll(t, group, name)
			}
			if err := r.Err(); err != nil {
				require.NotContains(t, err.Error(), marker)
			}
		}
	})
}

func readAll(t *testing.T, r *options.Reader, name string) {
	t.Helper()
	empty := func(string) string { return "" }
	require.NotEmpty(t, r.String(name, "fallback"))
	r.Required(name)
	r.Bool(name, true)
	number := r.Int(name, 5, 1, 9)
	require.True(t, number >= 1 && number <= 9, "%d", number)
	pause := r.Duration(name, time.Minute, time.Second, time.Hour)
	require.True(t, pause >= time.Second && pause <= time.Hour, "%s", pause)
	r.Strings(name)
	r.StringMap(name)
	require.Empty(t, r.RequiredSecret(name, empty).Value)
	require.Empty(t, r.EnvList(name, empty))
	for _, secret := range r.SecretMap(name, empty) {
		require.Empty(t, secret.Value)
	}
}
