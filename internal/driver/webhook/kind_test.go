package webhook_test

import (
	"os"
	"path/filepath"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/webhook"
)

func problems(t *testing.T, opts driver.Options, vars map[string]string) error {
	t.Helper()
	d, err := webhook.Kind().Open("test", opts, driver.Env{Getenv: func(name string) string { return vars[name] }})
	require.Nil(t, d)
	return err
}

// C64.
func TestOpenReportsEveryProblem(t *testing.T) {
	t.Parallel()

	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(noPEM, []byte("x"), 0o600))
	require.Equal(t, driver.Problems{
		{Path: "options.url", Text: "must begin with https:// or http://"},
		{Path: "options.secret_env", Text: "what follows whsec_ in the secret must be base64"},
		{Path: "options.apply_method", Text: "must be one of PUT, POST, PATCH"},
		{Path: "options.delete_method", Text: "must be one of DELETE, POST, PUT, PATCH"},
		{Path: "options.headers", Text: `"" cannot be the name of a header`},
		{Path: "options.headers", Text: `"A B" cannot be the name of a header`},
		{Path: "options.headers", Text: "Authorization is a credential: name an environment variable for it in options.headers_env"},
		{Path: "options.headers", Text: "the header Host is set by the driver"},
		{Path: "options.headers", Text: "the value of the header X-Bad holds a control character"},
		{Path: "options.headers", Text: "the header Webhook-Id is set by the driver"},
		{Path: "options.headers_env.X-Key", Text: "the environment variable NOT_SET is not set"},
		{Path: "options.headers_env", Text: "the header X-Good is given twice"},
		{Path: "options.ca_file", Text: noPEM + " holds no certificate in PEM form"},
		{Path: "options.connect_timeout", Text: "must be between 100ms and 1m"},
		{Path: "options.secret", Text: "unknown option; known here: apply_method, ca_file, connect_timeout, delete_method, headers, " +
			"headers_env, health_url, health_url_env, health_url_file, secret_env, secret_file, url, url_env, url_file"},
	}, problems(t, driver.Options{
		"url": "ftp://host", "secret_env": "SECRET", "secret": "hunter2", "apply_method": "GET", "delete_method": "get",
		"headers": map[string]any{
			"Authorization": "Bearer hunter2", "Host": "x", "webhook-id": "x", "A B": "x", "": "x", "X-Bad": "a\nb", "X-Good": "a",
		},
		"headers_env": map[string]any{"X-Key": "NOT_SET", "x-good": "SET"}, "ca_file": noPEM, "connect_timeout": "1ms",
	}, map[string]string{"SECRET": "good whsec_not-base64!", "SET": "x"}))
}

func TestOpenReportsWhatIsWrongWithTheURL(t *testing.T) {
	t.Parallel()

	vars := map[string]string{"URL": "https://host/secret-path", "BAD": "://secret-path"}
	for name, c := range map[string]struct {
		opts driver.Options
		want driver.Problem
	}{
		"Missing":   {driver.Options{}, driver.Problem{Path: "options.url", Text: "is required (or options.url_env, if it is a secret)"}},
		"Type":      {driver.Options{"url": 1}, driver.Problem{Path: "options.url", Text: "must be a string, not a number"}},
		"Two":       {driver.Options{"url": "https://h", "url_env": "URL"}, driver.Problem{Path: "options.url_env", Text: "cannot stand beside options.url: give one of the two"}},
		"NotSet":    {driver.Options{"url_env": "NOT_SET"}, driver.Problem{Path: "options.url_env", Text: "the environment variable NOT_SET is not set"}},
		"Secret":    {driver.Options{"url_env": "BAD"}, driver.Problem{Path: "options.url_env", Text: "must begin with https:// or http://"}},
		"Unread":    {driver.Options{"url": "http://user:pa55word@h:port/"}, driver.Problem{Path: "options.url", Text: "holds a host that cannot be read: expected a name or an address, and perhaps a port in digits, after the @ that ends the password"}},
		"F136":      {driver.Options{"url": "https://user:pa55@word/x#1@h/"}, driver.Problem{Path: "options.url", Text: "holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23"}},
		"Variable":  {driver.Options{"url": "https://h/${TOKEN}"}, driver.Problem{Path: "options.url", Text: "holds a variable that was not expanded, ${NAME} or $(NAME): write its value in its place, for reconciler expands no variables, or write $ as %24 if it belongs to the password"}},
		"NoHost":    {driver.Options{"url": "https:///x"}, driver.Problem{Path: "options.url", Text: "has no host"}},
		"Relative":  {driver.Options{"url": "/x"}, driver.Problem{Path: "options.url", Text: "must begin with https:// or http://"}},
		"Fragment":  {driver.Options{"url": "https://h/#x"}, driver.Problem{Path: "options.url", Text: "must not have a fragment (#...)"}},
		"Unknown":   {driver.Options{"url": "https://h/{id}"}, driver.Problem{Path: "options.url", Text: "has an unknown placeholder; known are {target}, {resource} and {key}"}},
		"NoKey":     {driver.Options{"url": "https://h/{resource}"}, driver.Problem{Path: "options.url", Text: "has placeholders but not {key}: all objects would have one URL"}},
		"InHost":    {driver.Options{"url": "https://{key}.h/"}, driver.Problem{Path: "options.url", Text: "may have placeholders in its path and query only"}},
		"InUser":    {driver.Options{"url": "https://u:{key}@h/"}, driver.Problem{Path: "options.url", Text: "may have placeholders in its path and query only"}},
		"OpenBrace": {driver.Options{"url": "https://h/{key}/{x"}, driver.Problem{Path: "options.url", Text: "has a brace that belongs to no placeholder"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, driver.Problems{c.want}, problems(t, c.opts, vars))
		})
	}
}

func TestEverySecretSignsDuringARotation(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	const raw = "an-old-raw-secret"
	d, err := webhook.Kind().Open("test", driver.Options{"url": url, "secret_env": "SECRETS"}, driver.Env{
		Getenv: func(string) string { return secret + "\n" + raw },
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close(t.Context())) })
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("apps", "web", `{}`)))
	request := <-requests

	fresh, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	require.NoError(t, fresh.Verify([]byte(request.body), request.header))
	old, err := standardwebhooks.NewWebhookRaw([]byte(raw))
	require.NoError(t, err)
	require.NoError(t, old.Verify([]byte(request.body), request.header))
	other, err := standardwebhooks.NewWebhookRaw([]byte("other"))
	require.NoError(t, err)
	require.Error(t, other.Verify([]byte(request.body), request.header))
}
