package watch_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/watch"
)

const (
	observations = "/v1/targets/eu/observations"
	end          = `{"end":true}`
)

// head is the first line of a report.
func head(session string, seq int, complete bool) string {
	return fmt.Sprintf(`{"session":%q,"seq":%d,"complete":%t}`, session, seq, complete)
}

// seen is a line of a report.
func seen(key string, version int64, state string) string {
	return fmt.Sprintf(`{"resource":"app","key":%q,"version":%d,"state":%q}`, key, version, state)
}

// post sends a body, and returns the status and the text of the answer.
func (b *bed) post(path string, body io.Reader, headers ...string) (status int, text string) {
	b.t.Helper()
	return postTo(b.t, b.server.URL+path, body, headers...)
}

func postTo(t testing.TB, url string, body io.Reader, headers ...string) (status int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, strings.TrimSuffix(string(answer), "\n")
}

func body(lines ...string) io.Reader { return strings.NewReader(strings.Join(lines, "\n") + "\n") }

// report sends lines, which must be taken, and returns the answer.
func (b *bed) report(lines ...string) string {
	b.t.Helper()
	status, text := b.post(observations, body(lines...))
	require.Equal(b.t, http.StatusOK, status, text)
	return text
}

// refused sends lines, which must be refused, and returns the status and the error.
func (b *bed) refused(body io.Reader, headers ...string) string {
	b.t.Helper()
	status, text := b.post(observations, body, headers...)
	var answer struct{ Error string }
	require.NoError(b.t, json.Unmarshal([]byte(text), &answer), text)
	return fmt.Sprintf("%d %s", status, answer.Error)
}

// version returns the published version of an object.
func (b *bed) version(key string) (version int64) {
	b.t.Helper()
	b.query(`SELECT version FROM reconciler.published WHERE target_id = $1 AND key = $2 ORDER BY version DESC LIMIT 1`, &version, b.target, key)
	return version
}

// observed describes what is known, in the order of keys. Versions are relative to the first one of the test.
func (b *bed) observed() string {
	b.t.Helper()
	var text string
	b.query(`SELECT coalesce(string_agg(concat_ws(' ', o.key, 'v' || o.version, o.state, o.healthy::text, o.message, o.status::text), ', ' ORDER BY o.key), '')
		FROM reconciler.observations o`, &text)
	return text
}

func TestReportIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b")
	var before, after int64
	b.query(`SELECT count(*) FROM reconciler.outbox`, &before)
	va, vb := b.version("a"), b.version("b")
	line := fmt.Sprintf(`{"resource":"app","key":"a","version":%d,"state":"failed","message":"no \"image\"","healthy":false,"status":{"n": [1.50, "ü"], "n2": null}}`, va)
	require.JSONEq(t, `{"accepted":2,"ignored":0}`, b.report(head("s", 1, false), line, seen("b", vb, "progressing"), end))
	require.Equal(t, fmt.Sprintf(`a v%d failed false no "image" {"n": [1.50, "ü"], "n2": null}, b v%d progressing`, va, vb), b.observed())
	b.query(`SELECT count(*) FROM reconciler.outbox`, &after)
	require.Equal(t, before, after, "a report is no change of a row")

	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := io.Copy(w, body(head("s", 2, false), seen("b", vb, "applied"), "", end))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	status, text := b.post(observations, &zipped, "Content-Encoding", "gzip", "Content-Type", "application/x-ndjson")
	require.Equal(t, 200, status, text)
	require.Contains(t, b.observed(), fmt.Sprintf("b v%d applied", vb))
	var m dto.Metric
	require.NoError(t, b.metrics.Observations.WithLabelValues("eu", "applied").Write(&m))
	require.InDelta(t, 1, m.GetCounter().GetValue(), 0)
}

// delivery is a report of the model: which objects it names, with which versions and states.
type delivery struct {
	session  string
	seq      int
	complete bool
	named    map[string]sighting
}

type sighting struct {
	version int64
	state   string
}

// C4: whatever order reports of a session arrive in, and how often, the newest wins. What is known after a random history
// is what the model says: the highest version, then the highest seq, of the last inventory and what is newer.
func TestC4_NewestReportWinsUnderReordering(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := []string{"a", "b", "c"}
	states := []string{"applied", "progressing", "failed", "absent"}
	for range 4 {
		b.apply(fmt.Sprint(b.revision), keys...)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	known := map[string]sighting{} // before the session
	for session := range 25 {
		var sent []delivery
		for seq := 1; seq <= 5; seq++ {
			d := delivery{fmt.Sprint(session), seq, r.IntN(3) == 0, map[string]sighting{}}
			for _, key := range keys {
				if r.IntN(3) > 0 {
					d.named[key] = sighting{b.version(key) - int64(r.IntN(3)), states[r.IntN(len(states))]}
				}
			}
			sent = append(sent, d)
		}
		known = expect(known, sent)
		order := append(r.Perm(len(sent)), r.Perm(len(sent))...) // each twice, as retries
		for _, i := range order {
			lines := []string{head(sent[i].session, sent[i].seq, sent[i].complete)}
			for key, s := range sent[i].named {
				lines = append(lines, seen(key, s.version, s.state))
			}
			b.report(append(lines, end)...)
		}
		var want []string
		for _, key := range keys {
			if s, ok := known[key]; ok {
				want = append(want, fmt.Sprintf("%s v%d %s", key, s.version, s.state))
			}
		}
		require.Equal(t, strings.Join(want, ", "), b.observed(), "seed %d, session %d: %v in the order %v", seed, session, sent, order)
	}
}

// expect is the model: sent are the reports of one session by seq.
func expect(known map[string]sighting, sent []delivery) map[string]sighting {
	first := 0
	for i, d := range sent {
		if d.complete {
			known, first = nil, i
		}
	}
	newest := map[string]sighting{}
	for key, s := range known {
		newest[key] = s
	}
	for _, d := range sent[first:] {
		for key, s := range d.named {
			if have, ok := newest[key]; !ok || s.version >= have.version {
				newest[key] = s
			}
		}
	}
	return newest
}

// The newest session is the one that the server saw first last: a client that lives on beside its successor changes nothing.
func TestReplacedSessionIsIgnored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.apply(`2`, "a")
	v := b.version("a")
	b.report(head("old", 7, true), seen("a", v-1, "applied"), end)
	require.JSONEq(t, `{"accepted":1,"ignored":0}`, b.report(head("new", 1, false), seen("a", v-1, "progressing"), end))
	require.JSONEq(t, `{"accepted":0,"ignored":1}`, b.report(head("old", 8, false), seen("a", v, "failed"), end))
	require.JSONEq(t, `{"accepted":0,"ignored":0}`, b.report(head("old", 9, true), end))
	require.Equal(t, fmt.Sprintf("a v%d progressing", v-1), b.observed())
	var session string
	b.query(`SELECT session || seq FROM reconciler.stream_reports WHERE target = 'eu'`, &session)
	require.Equal(t, "new1", session)
	for i := range 3 {
		b.report(head(fmt.Sprint(i), 1, false), end)
	}
	b.query(`SELECT replaced::text FROM reconciler.reports`, &session)
	require.Equal(t, "{old,new,0,1}", session)
	b.db.Exec(t, `UPDATE reconciler.reports SET replaced = array_fill('x'::text, '{1000}')`)
	b.report(head("last", 1, false), end)
	b.query(`SELECT cardinality(replaced) || replaced[1000] FROM reconciler.reports`, &session)
	require.Equal(t, "10002", session, "the memory of sessions is bounded")
}

// C4: an inventory that was cut changes nothing, wherever it was cut.
func TestCutInventoryChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b")
	b.report(head("s", 1, true), seen("a", b.version("a"), "applied"), seen("b", b.version("b"), "applied"), end)
	before := b.observed()
	whole, err := io.ReadAll(body(head("s", 2, true), seen("a", b.version("a"), "failed"), end))
	require.NoError(t, err)
	for n := range len(whole) - 1 { // without its last newline it is whole
		require.Contains(t, b.refused(bytes.NewReader(whole[:n])), "400 ", "%s", whole[:n])
		require.Equal(t, before, b.observed())
	}
	require.Equal(t, `400 the body ends after line 2 without {"end":true}: it was cut, and nothing of it is stored`,
		b.refused(body(head("s", 2, true), seen("a", b.version("a"), "failed"))))
	// A connection that breaks in the middle.
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.server.URL+observations, io.MultiReader(bytes.NewReader(whole[:len(whole)-3]), broken{}))
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(request) //nolint:bodyclose // there is none
	require.ErrorIs(t, err, io.ErrClosedPipe)
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err = w.Write(whole)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Equal(t, "400 the body cannot be read to its end: unexpected EOF", b.refused(bytes.NewReader(zipped.Bytes()[:zipped.Len()-6]), "Content-Encoding", "gzip"))
	require.Equal(t, before, b.observed())
	require.JSONEq(t, `{"accepted":1,"ignored":0}`, b.report(head("s", 2, true), seen("a", b.version("a"), "failed"), end))
	require.Equal(t, fmt.Sprintf("a v%d failed", b.version("a")), b.observed())
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// What tokens may report, and that one that may only report reads nothing.
func TestTokensThatReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	dir := t.TempDir()
	tokens := []config.Token{}
	for name, token := range map[string]config.Token{
		"r": {Allow: []string{config.AllowRead}},
		"w": {Allow: []string{config.AllowReport}},
		"n": {Allow: []string{config.AllowRead, config.AllowReport}, Resources: []string{"dns"}},
	} {
		token.Name, token.File, token.Targets = name, filepath.Join(dir, name), []string{"eu"}
		require.NoError(t, os.WriteFile(token.File, []byte(strings.Repeat(name, 32)), 0o600))
		tokens = append(tokens, token)
	}
	b.server = b.serve(config.Streams{Tokens: tokens})
	for _, test := range []struct {
		token, path string
		status      int
		want        string
	}{
		{"", observations, 401, "a valid token is needed"},
		{"r", observations, 403, `token \"r\" may not report on target \"eu\"`},
		{"n", observations, 403, `token \"n\" may not report on resource \"app\"`},
		{"w", "/v1/targets/us/observations", 403, `token \"w\" may not report on target \"us\"`},
		{"w", observations, 200, `{"accepted":1,"ignored":0}`},
	} {
		status, text := b.post(test.path, body(head("s", 1, false), seen("a", b.version("a"), "applied"), end), "Authorization", "Bearer "+strings.Repeat(test.token, 32))
		require.Equal(t, test.status, status, "%s %s: %s", test.token, test.path, text)
		require.Contains(t, text, test.want)
	}
	for _, path := range []string{objects, objects + "/app/a"} {
		status, text := b.get(path, "Authorization", "Bearer "+strings.Repeat("w", 32))
		require.Equal(t, 403, status)
		require.Contains(t, text, `token \"w\" may not read target \"eu\"`)
	}
	status, text := b.get("/v1/targets", "Authorization", "Bearer "+strings.Repeat("w", 32))
	require.Equal(t, 200, status)
	require.JSONEq(t, `{"targets":[]}`, text)
	var m dto.Metric
	require.NoError(t, b.metrics.ReportsRefused.WithLabelValues("forbidden").Write(&m))
	require.InDelta(t, 3, m.GetCounter().GetValue(), 0)
}

// A client that reports everything each minute writes nothing while nothing changes.
func TestUnchangedInventoryWritesNoRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b", "c")
	inventory := func(seq int, state string) []string {
		return []string{
			head("s", seq, true), seen("a", b.version("a"), state),
			fmt.Sprintf(`{"resource":"app","key":"b","version":%d,"state":"applied","healthy":true,"message":"m","status":{"a":{"b":1.0}}}`, b.version("b")),
			seen("c", b.version("c"), "progressing"), end,
		}
	}
	rows := func() (text string) {
		b.query(`SELECT string_agg(key || ctid || xmin, ' ' ORDER BY key) FROM reconciler.observations`, &text)
		return text
	}
	b.unsettled("a", "pending", "")
	b.report(inventory(1, "applied")...)
	before, first := rows(), ""
	b.query(`SELECT observed_at::text FROM reconciler.objects`, &first)
	require.JSONEq(t, `{"accepted":3,"ignored":0}`, b.report(inventory(2, "applied")...))
	require.Equal(t, before, rows())
	var later bool
	b.query(`SELECT observed_at > $1::text::timestamptz FROM reconciler.objects`, &later, first)
	require.True(t, later, "it was observed again")
	b.report(inventory(3, "failed")...)
	was, is := strings.Fields(before), strings.Fields(rows())
	require.NotEqual(t, was[0], is[0])
	require.Equal(t, was[1:], is[1:])
}

// One report on a target at a time, and a slow one gives up its place.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	access, err := watch.NewAccess(config.Streams{}, os.Getenv, nil)
	require.NoError(t, err)
	handler := watch.NewHandler(b.hub, access, "an-installation", nil, b.draining)
	b.server = httptest.NewServer(handler)
	t.Cleanup(b.server.Close)
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan string)
	lines := slices.Repeat([]string{seen("a", b.version("a"), "applied")}, 5000)
	go func() {
		status, text := b.post(observations, io.MultiReader(body(append([]string{head("s", 1, false)}, lines...)...), gate{inside, leave}, body(end)))
		done <- fmt.Sprint(status, text)
	}()
	<-inside
	require.Eventually(t, func() bool { large, all := handler.Reports(); return large == 1 && all == 1 }, deadline, 10*time.Millisecond)
	require.Equal(t, "503 another report on the target is under way; try again", b.refused(body(head("s", 2, false), end)))
	close(leave)
	require.Equal(t, `200{"accepted":1,"ignored":4999}`, <-done)
	require.JSONEq(t, `{"accepted":0,"ignored":0}`, b.report(head("s", 2, false), end))

	handler.Patience(1)
	leave = make(chan struct{})
	defer close(leave)
	require.Equal(t, "503 the body did not arrive in time; try again", b.refused(io.MultiReader(body(head("s", 3, true)), gate{make(chan struct{}, 1), leave})))
	large, all := handler.Reports()
	require.Zero(t, large+all)
}

// gate is a reader that has nothing, after it was asked and until it may end.
type gate struct{ inside, leave chan struct{} }

func (g gate) Read([]byte) (int, error) {
	select {
	case g.inside <- struct{}{}:
	case <-g.leave:
	}
	<-g.leave
	return 0, io.EOF
}
