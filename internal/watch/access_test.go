package watch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

func token(char string) string { return strings.Repeat(char, 32) }

// S9: what each token may ask, whether or not it exists.
func TestTokens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.applyOf("dns", `1`, "a")
	b.complete()
	file := filepath.Join(t.TempDir(), "token")
	write := func(tokens ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(tokens, "\n")+"\n"), 0o600))
	}
	write(token("a"))
	narrow := filepath.Join(t.TempDir(), "narrow")
	require.NoError(t, os.WriteFile(narrow, []byte(token("n")), 0o600))
	b.server = b.serve(config.Streams{Tokens: []config.Token{
		{Name: "eu", File: file, Targets: []string{"eu"}, Allow: []string{config.AllowRead}},
		{Name: "narrow", File: narrow, Targets: []string{"eu"}, Resources: []string{"dns"}, Allow: []string{config.AllowRead}},
	}})
	for _, test := range []struct {
		token, path string
		status      int
		want        string
	}{
		{"", objects, 401, "a valid token is needed"},
		{"", "/v1/targets", 401, "a valid token is needed"},
		{"", "/v1/openapi.json", 401, "a valid token is needed"},
		{"", "/v1/nothing", 401, "a valid token is needed"},
		{token("x"), objects, 401, "a valid token is needed"},
		{token("a"), objects, 200, `"key":"a"`},
		{token("a"), objects + "/app/a", 200, `"key":"a"`},
		{token("a"), "/v1/targets/us/objects", 403, `token \"eu\" may not read target \"us\"`},
		{token("a"), "/v1/targets/us/objects/app/a", 403, `token \"eu\" may not read target \"us\"`},
		{token("a"), "/v1/targets", 200, `{"targets":["eu"]}`},
		{token("n"), objects + "?resource=app", 403, `token \"narrow\" may not read resource \"app\"`},
		{token("n"), objects + "/app/a", 403, `token \"narrow\" may not read resource \"app\"`},
		{token("n"), objects + "/app/absent", 403, `token \"narrow\" may not read resource \"app\"`},
		{token("n"), objects + "/dns/a", 200, `"resource":"dns"`},
		{token("n"), objects + "?resource=dns&prefix=a", 200, `"resource":"dns"`},
	} {
		status, text := b.get(test.path, "Authorization", "Bearer "+test.token)
		require.Equal(t, test.status, status, "%s %s: %s", test.token, test.path, text)
		require.Contains(t, text, test.want)
	}
	status, text := b.get(objects, "Authorization", "Bearer "+token("n"))
	require.Equal(t, 200, status)
	require.NotContains(t, text, `"resource":"app"`, "without a filter it reads what it may")
	status, _ = b.get(objects, "Authorization", "Basic "+token("a"))
	require.Equal(t, 401, status)

	// Two tokens are valid while one takes the place of the other.
	write(token("a"), token("b"))
	require.NoError(t, b.access.Read())
	old, next := b.followAs(token("a")), b.followAs(token("b"))
	old.until("end_of_snapshot")
	next.until("end_of_snapshot")
	write(token("b"))
	require.NoError(t, b.access.Read())
	require.Equal(t, []string{"closed revoked"}, old.rest())
	status, _ = b.get(objects, "Authorization", "Bearer "+token("a"))
	require.Equal(t, 401, status)
	b.apply(`2`, "a")
	require.Equal(t, []string{"a=2"}, next.until("a=2"))

	// A file that cannot be read takes no token away.
	require.NoError(t, os.Remove(file))
	require.ErrorContains(t, b.access.Read(), "streams.tokens[0] (eu): cannot be read")
	b.apply(`3`, "a")
	require.Equal(t, []string{"a=3"}, next.until("a=3"))
}

// S5: a bookmark of one's own resources is none of all.
func TestRightsArePartOfTheScope(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.applyOf("dns", `1`, "a")
	b.complete()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token("a")), 0o600))
	tokens := []config.Token{{Name: "eu", File: file, Targets: []string{"eu"}, Resources: []string{"dns"}, Allow: []string{config.AllowRead}}}
	b.server = b.serve(config.Streams{Tokens: tokens})
	f := b.followAs(token("a"))
	f.until("end_of_snapshot")
	tokens[0].Resources = nil
	b.server = b.serve(config.Streams{Tokens: tokens})
	require.Equal(t, []string{"reset scope", "a=1", "end_of_snapshot"}, b.followAs(token("a"), "since", f.bookmark).until("end_of_snapshot"))
}
