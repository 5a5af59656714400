package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/redact"
)

// marker is a password that no other part of a URL can be mistaken for.
const marker = "hunter2"

// C69.
func TestErrorsNeverShowThePassword(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		noise := rapid.StringOfN(rapid.RuneFrom([]rune(`ab:/@?#&= '\%[]1`)), 0, 4, -1)
		raw := "postgres://app:" + noise.Draw(t, "before") + marker + noise.Draw(t, "after") + "@db:99999/shop?sslmode=maybe"
		if err := checkDatabaseURL(raw); err != nil && strings.Contains(err.Error(), marker) {
			t.Fatalf("%s: %v", raw, err)
		}
	})
}

func TestURLWithoutSecretsStaysUsable(t *testing.T) {
	t.Parallel()
	raw := "postgres://app@db:5432/shop?sslmode=require&application_name=x"
	parsed, err := url.Parse(redact.URL(raw))
	require.NoError(t, err)
	require.Equal(t, raw, parsed.String())
}

// C69: an URL that is logged, printed or encoded by accident shows no password.
func TestURLShowsNoPasswordHoweverItIsPrinted(t *testing.T) {
	t.Parallel()
	const shown = "postgres://app:REDACTED@db/shop"
	u := NewURL("postgres://app:hunter2@db/shop")
	require.Equal(t, "postgres://app:hunter2@db/shop", u.Reveal())
	for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%x", "%d"} {
		require.Equal(t, shown, fmt.Sprintf(verb, u))
		require.NotContains(t, fmt.Sprintf(verb, struct{ U URL }{u}), marker)
		require.NotContains(t, fmt.Sprintf(verb, &Config{DatabaseURL: u}), marker)
	}
	encoded, err := json.Marshal(u)
	require.NoError(t, err)
	require.Equal(t, `"`+shown+`"`, string(encoded))
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("connect", "url", u)
	require.Contains(t, log.String(), " url="+shown+"\n")
}

func TestTargetPrintsItsNameOnly(t *testing.T) {
	t.Parallel()
	target := everyField().Targets[0]
	require.Equal(t, "eu-1", fmt.Sprintf("%v", target))
	require.Equal(t, "[eu-1]", fmt.Sprintf("%+v", []Target{target}))
	require.Equal(t, "config.Target(eu-1)", fmt.Sprintf("%#v", target))
}

func TestRedactOptionHidesWhatLooksLikeASecret(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		option string
		value  any
		want   any
	}{
		"Harmless":        {"dir", "/srv/a", "/srv/a"},
		"Number":          {"count", int64(3), int64(3)},
		"SecretByName":    {"api_key", "x", "REDACTED"},
		"SecretTree":      {"credentials", map[string]any{"a": "b"}, "REDACTED"},
		"NameOfVariable":  {"secret_env", "HOOK_SECRET", "HOOK_SECRET"},
		"NameOfFile":      {"token_file", "/run/secrets/token", "/run/secrets/token"},
		"URL":             {"url", "https://me:pw@h/x?y=z", "https://REDACTED@h/x?REDACTED"},
		"ConnectionText":  {"database", "host=h password=pw", "host=h password=REDACTED"},
		"URLInsideText":   {"note", "see https://me:pw@h", "REDACTED"},
		"SecretByText":    {"args", "Authorization: Basic abc", "REDACTED"},
		"Headers":         {"headers", map[string]any{"X-Any": "v"}, map[string]any{"X-Any": "REDACTED"}},
		"EnvOfCommand":    {"env", map[string]any{"A": "v"}, map[string]any{"A": "REDACTED"}},
		"Nested":          {"outer", map[string]any{"password": "pw", "b": "c"}, map[string]any{"password": "REDACTED", "b": "c"}},
		"FlagAndValue":    {"command", []any{"run", "--token", "abc", "-v", "x"}, []any{"run", "--token", "REDACTED", "-v", "x"}},
		"FlagWithValue":   {"command", []any{"run", "--password=abc", "x"}, []any{"run", "REDACTED", "x"}},
		"ListOfMappings":  {"list", []any{map[string]any{"pwd": "a"}}, []any{map[string]any{"pwd": "REDACTED"}}},
		"SecretInCommand": {"command", []any{"curl", "-H", "X-Token: a"}, []any{"curl", "-H", "REDACTED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, redactOption(tc.option, tc.value))
		})
	}
}
