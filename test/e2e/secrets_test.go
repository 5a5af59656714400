package e2e_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// talkative is an endpoint that fails and repeats all that it was told.
func talkative(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusInternalServerError)
		user, password, _ := r.BasicAuth()
		_, _ = fmt.Fprintf(w, "%s %s %s %s %s %s", password, user, r.Header.Get("X-Token"), r.URL, body, r.Header)
	}))
	t.Cleanup(server.Close)
	return server
}

// C69: secrets come from the environment, and go nowhere else.
func TestSecretsAreNowhereToBeSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) VALUES (1, 'hook'), (2, 'exec')`)
	key := base64.StdEncoding.EncodeToString([]byte("the-signing-key-of-the-hook"))
	secrets := map[string]string{"database": "Pa55-of/db", "hook": "whsec_" + key, "key": key, "user": "Pa55-of-url", "token": "t0ken-0f-header", "program": "pr0gram-secret"}
	database, err := url.Parse(w.db.URL)
	require.NoError(t, err)
	database.User = url.UserPassword("postgres", secrets["database"])
	secrets["escaped"] = url.QueryEscape(secrets["database"])
	endpoint, err := url.Parse(talkative(t).URL)
	require.NoError(t, err)
	endpoint.User = url.UserPassword("hook", secrets["user"])
	w.env = []string{
		"RECONCILER_DATABASE_URL=" + database.String(), "RECONCILER_DIRECT_URL=" + database.String(),
		"HOOK_SECRET=" + secrets["hook"], "HOOK_URL=" + endpoint.String(), "HOOK_TOKEN=" + secrets["token"], "PROGRAM_SECRET=" + secrets["program"],
	}
	w.configure([]object{
		{"name": "hook", "driver": "webhook", "options": object{"url_env": "HOOK_URL", "secret_env": "HOOK_SECRET", "headers_env": object{"X-Token": "HOOK_TOKEN"}}},
		{"name": "exec", "driver": "exec", "options": object{"command": []string{"sh", "-c", "env >&2; exit 1"}, "env_from": []string{"PROGRAM_SECRET"}}},
	}, object{"database_url": nil, "pprof_listen": "127.0.0.1:0"})
	d := w.start()
	w.becomes("2", `SELECT count(*) FROM reconciler.failing WHERE attempts > 1`)
	require.Contains(t, w.text(`SELECT last_error FROM reconciler.failing WHERE target = 'hook'`), "500 Internal Server Error", "the endpoint was reached")

	seen := map[string]string{"log": "", "database": w.everything(), "sessions": w.text(`SELECT string_agg(a::text, E'\n') FROM pg_stat_activity a WHERE datname = current_database()`)}
	for _, args := range [][]string{
		{"status"}, {"status", "--failing"}, {"explain", "hook", "app", "1"}, {"doctor"}, {"config", "print"}, {"wait", "--timeout", "0s"}, {"diff"}, {"sync", "hook", "--report", "--wait", "--timeout", "1s"},
	} {
		for _, format := range []string{"json", "table"} {
			r := w.cli(append(args, "-o", format)...)
			seen[strings.Join(args, " ")+" as "+format] = r.stdout + r.stderr
		}
	}
	for _, path := range []string{"/metrics", "/healthz", "/readyz", "/"} {
		_, body, err := d.get(path)
		require.NoError(t, err)
		seen[path] = body
	}
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", d.cmd.Process.Pid))
	require.NoError(t, err)
	seen["arguments"] = string(arguments)
	d.stop()
	// The same, where nothing works.
	database.Host = "127.0.0.1:1"
	for name, bad := range map[string]string{"refused": database.String(), "malformed": strings.Replace(database.String(), "@", "@[", 1), "not a URL": "postgres//" + secrets["database"]} {
		w.env = append(w.env, "RECONCILER_DATABASE_URL="+bad, "RECONCILER_DIRECT_URL="+bad)
		r := w.refused()
		require.NotZero(t, r.code)
		require.NotEmpty(t, r.stderr)
		seen["run, "+name] = r.stderr
		r = w.cli("config", "print")
		seen["config print, "+name] = r.stdout + r.stderr
	}
	seen["log"] = d.log.text()
	for where, text := range seen {
		for name, secret := range secrets {
			require.NotContains(t, text, secret, "the secret of %s is in %s", name, where)
		}
	}
	require.Contains(t, seen["config print as json"], "REDACTED")
}

// everything returns all rows of all tables of the schema as text.
func (w *world) everything() string {
	w.t.Helper()
	var text strings.Builder
	for _, table := range w.column(`SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'reconciler'::regnamespace AND relkind IN ('r', 'p', 'v')`) {
		for _, row := range w.column(fmt.Sprintf(`SELECT t::text FROM %s AS t`, table)) {
			text.WriteString(row + "\n")
		}
	}
	require.Contains(w.t, text.String(), "exit status 1")
	return text.String()
}
