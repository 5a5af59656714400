package watch_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (b *bed) do(path string, headers ...string) *http.Response {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.server.URL+path, nil)
	require.NoError(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func (b *bed) get(path string, headers ...string) (status int, text string) {
	b.t.Helper()
	response := b.do(path, headers...)
	body, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	return response.StatusCode, string(body)
}

// Bad input has one error each.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	for _, test := range []struct {
		path   string
		status int
		want   string
	}{
		{"/v1/targets/us/objects", 404, "target \"us\" has no stream: it needs `driver: stream` in the config of a running process"},
		{"/v1/targets/soon/objects", 503, "target \"soon\" has no stream yet: its owner has not started"},
		{"/v1/targets/%00%FF/objects", 404, "target \"\\x00\\xff\" has no stream: it needs `driver: stream` in the config of a running process"},
		{"/v1/targets/us/objects/app/a", 404, "target \"us\" has no stream: it needs `driver: stream` in the config of a running process"},
		{objects + "/app/a", 404, `target "eu" has no published object app/a`},
		{objects + "/app/%00%FF", 404, "target \"eu\" has no published object app/\x00\uFFFD"},
		{objects + "/app/a?watch=true", 400, `unknown parameter "watch": there are none here`},
		{objects + "?since=abc", 400, "since is not a bookmark: use the text of a checkpoint or an end_of_snapshot, unchanged"},
		{objects + "?watch=true&timeout=25", 400, `timeout must be a duration from 1s to 1h, such as "25s", not "25"`},
		{objects + "?watch=true&timeout=2h", 400, `timeout must be a duration from 1s to 1h, such as "25s", not "2h"`},
		{objects + "?timeout=25s", 400, "timeout needs watch=true: a snapshot ends by itself"},
		{objects + "?watch=yes", 400, `watch must be true or false, not "yes"`},
		{objects + "?prefix=a", 400, "prefix needs exactly one resource: keys of different resources have nothing in common"},
		{objects + "?prefix=a&resource=app&resource=dns", 400, "prefix needs exactly one resource: keys of different resources have nothing in common"},
		{objects + "?resource=", 400, "resource is empty"},
		{objects + "?resource=%FF", 400, "resource and prefix must be valid UTF-8 without NUL"},
		{objects + "?ressource=app", 400, `unknown parameter "ressource": there are watch, since, timeout, resource, prefix`},
		{objects + "?watch=true&watch=true", 400, "watch is given 2 times"},
		{"/v1/objects", 404, "there is nothing at /v1/objects: /v1/openapi.json describes what is served"},
	} {
		status, text := b.get(test.path)
		var answer struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(text), &answer), "%s: %s", test.path, text)
		require.Equal(t, test.want, answer.Error, test.path)
		require.Equal(t, test.status, status, test.path)
	}
	response, err := http.Post(b.server.URL+objects, "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 405, response.StatusCode)
	response, err = http.Head(b.server.URL + objects + "?watch=true")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 200, response.StatusCode)
	require.Eventually(t, func() bool { _, _, watchers := b.hub.Watched(); return watchers == 0 }, deadline, 10*time.Millisecond, "HEAD watches nothing")
}

func TestTargetsAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	status, text := b.get("/v1/targets")
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"targets": ["eu"]}`, text)
}

// One object has its hash as its ETag, and any key can be asked for.
func TestOneObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := []string{"a", "a/b", "..", "ü %2F?#", `"<&>"`}
	b.apply(`{"n": 1.50, "html": "<&>"}`, keys...)
	for _, key := range keys {
		path := objects + "/app/" + strings.ReplaceAll(url.PathEscape(key), ".", "%2E")
		response := b.do(path)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, 200, response.StatusCode, "%s: %s", path, body)
		require.Contains(t, string(body), `"spec":{"n": 1.50, "html": "<&>"}`, "as PostgreSQL prints it")
		var got frame
		require.NoError(t, json.Unmarshal(body, &got))
		require.Equal(t, key, got.Key)
		require.Equal(t, `"`+got.Hash+`"`, response.Header.Get("ETag"))
		status, _ := b.get(path, "If-None-Match", `"other", `+response.Header.Get("ETag"))
		require.Equal(t, 304, status)
	}
}

// An EventSource gets checkpoints with ids, and resumes where it was though its URL is that of the first time.
func TestServerSentEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	response := b.do(objects, "Accept", "text/event-stream")
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	events := strings.Split(strings.TrimSpace(string(body)), "\n\n")
	require.Len(t, events, 3)
	require.True(t, strings.HasPrefix(events[0], `data: {"type":"upsert","resource":"app","key":"a"`), events[0])
	id, data, _ := strings.Cut(events[2], "\n")
	require.True(t, strings.HasPrefix(data, `data: {"type":"end_of_snapshot","bookmark":"`+strings.TrimPrefix(id, "id: ")), events[2])
	b.apply(`2`, "a")
	status, text := b.get(objects+"?since=nonsense", "Last-Event-ID", strings.TrimPrefix(id, "id: "))
	require.Equal(t, 200, status)
	require.Contains(t, text, `"spec":2}`)
	require.NotContains(t, text, "end_of_snapshot")
}

// Go's client asks for gzip by itself, and takes the coding away again.
func TestSnapshotsAreCompressed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	require.True(t, b.do(objects).Uncompressed)
	require.False(t, b.do(objects+"?watch=true&timeout=1s").Uncompressed, "it would cost a megabyte for each watcher")
	require.False(t, b.do(objects, "Accept-Encoding", "gzip;q=0").Uncompressed)
}

// The description names every route, parameter, reason and state.
func TestDescription(t *testing.T) {
	t.Parallel()
	b := setup(t)
	status, text := b.get("/v1/openapi.json")
	require.Equal(t, 200, status)
	var doc struct {
		OpenAPI string
		Paths   map[string]struct {
			Get, Post struct{ Parameters []struct{ Name string } }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	var names []string
	for _, p := range doc.Paths["/v1/targets/{target}/objects"].Get.Parameters {
		names = append(names, p.Name)
	}
	require.Equal(t, []string{"", "watch", "since", "timeout", "resource", "prefix", "Last-Event-ID"}, names)
	require.Len(t, doc.Paths["/v1/targets/{target}/observations"].Post.Parameters, 2)
	require.Len(t, doc.Paths, 5)
}
