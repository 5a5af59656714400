package webhook_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func reporter(t *testing.T, opts driver.Options) driver.HealthReporter {
	t.Helper()
	if opts["url"] == nil {
		opts["url"] = "http://127.0.0.1:1"
	}
	d, ok := open(t, opts).(driver.HealthReporter)
	require.True(t, ok)
	return d
}

func TestOnlyAHookWithAHealthURLReportsHealth(t *testing.T) {
	t.Parallel()

	_, reports := open(t, driver.Options{"url": "http://h"}).(driver.HealthReporter)
	require.False(t, reports)
	_, reports = open(t, driver.Options{"url": "http://h", "health_url": "http://h/health"}).(driver.HealthReporter)
	require.True(t, reports)
}

func TestHealthIsAskedWithTheHeadersOfEveryCall(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	d := reporter(t, driver.Options{
		"health_url": url + "/health?of=eu", "secret_env": "HOOK_SECRET", "headers": map[string]any{"x-team": "infra"}, "headers_env": map[string]any{"Authorization": "HOOK_TOKEN"},
	})
	require.NoError(t, d.Health(t.Context()))
	request := <-requests
	require.Equal(t, "GET /health of=eu", request.method+" "+request.path+" "+request.query)
	require.Empty(t, request.body)
	require.Equal(t, "infra", request.header.Get("X-Team"))
	require.Equal(t, "Bearer "+token, request.header.Get("Authorization"))
	require.Equal(t, "reconciler", request.header.Get("User-Agent"))
	require.Equal(t, "no-cache", request.header.Get("Cache-Control"))
	for _, name := range []string{"Idempotency-Key", "Webhook-Id", "Webhook-Signature", "Content-Type"} {
		require.Empty(t, request.header.Get(name), "it is no message")
	}
}

func TestWhatIsNot2xxIsNotHealthy(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"OK":         {200, "starting", ""},
		"NoContent":  {204, "", ""},
		"NoReason":   {503, "", "503 Service Unavailable"},
		"FirstLine":  {503, "\n 2 of 5\tare ready \r\nsee the log", "503 Service Unavailable: 2 of 5 are ready"},
		"NotFound":   {404, "no such page", "404 Not Found: no such page"},
		"Redirect":   {307, "", "307 Temporary Redirect (redirects are not followed: set options.health_url to the final address)"},
		"Bytes":      {500, "\xff\x00", "500 Internal Server Error: \uFFFD"},
		"Long":       {500, strings.Repeat("x", 1000), "500 Internal Server Error: " + strings.Repeat("x", 297) + "..."},
		"Credential": {500, "no: Bearer " + token + "\n", "500 Internal Server Error: no: [HOOK_TOKEN]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			url, _ := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			err := reporter(t, driver.Options{"health_url": url + "/health", "headers_env": map[string]any{"Authorization": "HOOK_TOKEN"}}).Health(t.Context())
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, "GET "+url+": "+c.want)
		})
	}
}

func TestHealthThatCannotBeAskedIsNotHealthy(t *testing.T) {
	t.Parallel()

	require.EqualError(t, reporter(t, driver.Options{"health_url": "http://127.0.0.1:1/x"}).Health(t.Context()),
		"GET http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")

	ctx, cancel := context.WithCancelCause(t.Context())
	url, requests := endpoint(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(errors.New("too slow"))
		<-r.Context().Done()
	})
	d := reporter(t, driver.Options{"health_url": url})
	require.EqualError(t, d.Health(ctx), "GET "+url+": too slow")
	<-requests
	require.EqualError(t, d.Health(ctx), "too slow")
	require.Empty(t, requests)
}

// C69: a URL that is a secret, which the endpoint repeats.
func TestASecretHealthURLIsInNoError(t *testing.T) {
	t.Parallel()

	url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, r.URL.String())
	})
	path := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(path, []byte(url+"/T0KEN-IN-PATH?api_key=k3y-value\n"), 0o600))
	require.EqualError(t, reporter(t, driver.Options{"health_url_file": path}).Health(t.Context()),
		"GET "+url+": 503 Service Unavailable: /[options.health_url_file]?api_key=[options.health_url_file]")
}

// C64.
func TestOpenReportsWhatIsWrongWithTheHealthURL(t *testing.T) {
	t.Parallel()

	vars := map[string]string{"URL": "https://host/secret-path"}
	for name, c := range map[string]struct {
		opts driver.Options
		want driver.Problem
	}{
		"Type":        {driver.Options{"health_url": 1}, driver.Problem{Path: "options.health_url", Text: "must be a string, not a number"}},
		"Two":         {driver.Options{"health_url": "https://h", "health_url_env": "URL"}, driver.Problem{Path: "options.health_url_env", Text: "cannot stand beside options.health_url: give one of the two"}},
		"NotSet":      {driver.Options{"health_url_env": "NOT_SET"}, driver.Problem{Path: "options.health_url_env", Text: "the environment variable NOT_SET is not set"}},
		"Scheme":      {driver.Options{"health_url": "ftp://h"}, driver.Problem{Path: "options.health_url", Text: "must begin with https:// or http://"}},
		"NoHost":      {driver.Options{"health_url": "https:///x"}, driver.Problem{Path: "options.health_url", Text: "has no host"}},
		"Fragment":    {driver.Options{"health_url": "https://h/#x"}, driver.Problem{Path: "options.health_url", Text: "must not have a fragment (#...)"}},
		"Placeholder": {driver.Options{"health_url": "https://h/{target}"}, driver.Problem{Path: "options.health_url", Text: "must not have placeholders: it stands for the whole target"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opts["url"] = "https://h"
			require.Equal(t, driver.Problems{c.want}, problems(t, c.opts, vars))
		})
	}
}
