package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

const (
	one  = `{"type":"upsert","resource":"app","key":"1","version":1,"revision":1,"hash":"ab","spec":{"id": 1}}`
	gone = `{"type":"delete","resource":"app","key":"1","version":2}`
)

// script is a server that answers each request in its own way. It cuts a response that does not end with `closed`.
type script struct {
	t       *testing.T
	answers []func(w http.ResponseWriter, r *http.Request)
	queries []string
	tokens  []string
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.queries, s.tokens = append(s.queries, r.URL.EscapedPath()+"?"+r.URL.RawQuery), append(s.tokens, r.Header.Get("Authorization"))
	if len(s.queries) > len(s.answers) {
		s.t.Errorf("request %d was not expected: %s", len(s.queries), s.queries[len(s.queries)-1])
		w.WriteHeader(http.StatusTeapot)
		return
	}
	s.answers[len(s.queries)-1](w, r)
}

// lines answers with lines. If the last one is "cut", the connection is closed in the middle of the response.
func lines(text ...string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Reconciler-Installation", "i")
		for _, line := range text {
			if line == "cut" {
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_, _ = fmt.Fprintln(w, line)
		}
	}
}

// status answers with an error, as reconciler does.
func status(code int, text string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Reconciler-Installation", "i")
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"error":%q}`, text)
	}
}

func newScript(t *testing.T, answers ...func(http.ResponseWriter, *http.Request)) (*script, *client.Client) {
	t.Helper()
	s := &script{t: t, answers: answers}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.HTTPClient(server.Client()))
	require.NoError(t, err)
	return s, c
}

// collect returns what Watch yields, a line for each frame, and its error.
func collect(ctx context.Context, c *client.Client, opts client.WatchOptions) (frames []string, last error) {
	for f, err := range c.Watch(ctx, "eu", opts) {
		if err != nil {
			return frames, err
		}
		text := string(f.Type)
		if f.Key != "" {
			text += fmt.Sprintf(" %s/%s@%d%s", f.Resource, f.Key, f.Version, f.Spec)
		}
		frames = append(frames, strings.TrimSpace(text+" "+f.Bookmark+f.Reason))
	}
	return frames, nil
}

func TestWatchResumesAtTheNewestBookmark(t *testing.T) {
	t.Parallel()
	s, c := newScript(t,
		lines(one, `{"type":"checkpoint","bookmark":"b1"}`, "cut"),
		lines(`{"type":"end_of_snapshot","bookmark":"b2","revision":1}`, `{"type":"news","x":1}`, `{"type":"closed","reason":"age"}`),
		lines(gone, `{"type":"checkpoint","bookmark":"b3","revision":2}`, `{"type":"closed","reason":"released"}`),
	)
	frames, err := collect(t.Context(), c, client.WatchOptions{Resources: []string{"app"}, Prefix: "1"})
	require.ErrorIs(t, err, client.ErrReleased)
	require.Equal(t, []string{
		`upsert app/1@1{"id": 1}`, "checkpoint b1", "waiting the response was cut: unexpected EOF", "end_of_snapshot b2", "news",
		"delete app/1@2", "checkpoint b3",
	}, frames)
	require.Equal(t, []string{
		"/v1/targets/eu/objects?prefix=1&resource=app&watch=true",
		"/v1/targets/eu/objects?prefix=1&resource=app&since=b1&watch=true",
		"/v1/targets/eu/objects?prefix=1&resource=app&since=b2&watch=true",
	}, s.queries)
}

// What a snapshot has named before its first bookmark may be gone when the next one begins.
func TestSnapshotThatIsCutBeforeABookmarkIsReset(t *testing.T) {
	t.Parallel()
	_, c := newScript(t,
		status(503, "the first full sync is under way"),
		lines(one, "cut"),
		lines(`{"type":"end_of_snapshot","bookmark":"b1","revision":2}`),
	)
	frames, err := collect(t.Context(), c, client.WatchOptions{Once: true})
	require.NoError(t, err)
	require.Equal(t, []string{
		"waiting the first full sync is under way (status 503)", `upsert app/1@1{"id": 1}`, "waiting the response was cut: unexpected EOF", "reset cut",
		"end_of_snapshot b1",
	}, frames)
}

// After a reset the bookmark before it is not used any more.
func TestResetForgetsTheBookmark(t *testing.T) {
	t.Parallel()
	s, c := newScript(t,
		lines(`{"type":"reset","reason":"expired"}`, "cut"),
		lines(`{"type":"end_of_snapshot","bookmark":"b1"}`),
	)
	_, err := collect(t.Context(), c, client.WatchOptions{Since: "old", Once: true})
	require.NoError(t, err)
	require.Equal(t, []string{"/v1/targets/eu/objects?since=old", "/v1/targets/eu/objects?"}, s.queries)
}

// A response of a snapshot that ends early has been cut, however it ends.
func TestOnceEndsWithABookmarkOnly(t *testing.T) {
	t.Parallel()
	s, c := newScript(t,
		lines(`{"type":"checkpoint","bookmark":"b1"}`, one),
		lines(one, `{"type":"closed","reason":"draining"}`),
		lines(one, `{"type":"end_of_snapshot","bookmark":"b2"}`),
	)
	_, err := collect(t.Context(), c, client.WatchOptions{Once: true})
	require.NoError(t, err)
	require.Len(t, s.queries, 3)
}

func TestErrorsThatLastEndAWatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		is   error
	}{{401, client.ErrUnauthorized}, {403, client.ErrForbidden}, {404, client.ErrNotFound}, {400, nil}} {
		t.Run(fmt.Sprint(c.code), func(t *testing.T) {
			t.Parallel()
			_, watcher := newScript(t, status(c.code, "no"))
			_, err := collect(t.Context(), watcher, client.WatchOptions{})
			require.EqualError(t, err, fmt.Sprintf("no (status %d)", c.code))
			var asked *client.StatusError
			require.ErrorAs(t, err, &asked)
			for _, one := range []error{client.ErrUnauthorized, client.ErrForbidden, client.ErrNotFound} {
				require.Equal(t, errors.Is(c.is, one), errors.Is(err, one), one)
			}
		})
	}
}

// A proxy without a server behind it, a server that is overloaded, and one that is no reconciler are waited out.
func TestErrorsThatPassAreWaitedOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason string
		answer func(http.ResponseWriter, *http.Request)
	}{
		{"404 Not Found", http.NotFound},
		{"no header Reconciler-Installation", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>welcome</html>")) }},
		{"too many", status(429, "too many")},
		{"bad gateway", status(502, "bad gateway")},
		{"read a frame: ", lines(`not JSON`)},
		{"closed the response: revoked", lines(`{"type":"closed","reason":"revoked"}`)},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			s, watcher := newScript(t, c.answer, status(401, "the token is not valid"))
			frames, err := collect(t.Context(), watcher, client.WatchOptions{})
			require.ErrorIs(t, err, client.ErrUnauthorized)
			require.Len(t, s.queries, 2)
			require.Len(t, frames, 1)
			require.Contains(t, frames[0], c.reason)
		})
	}
}

func TestAnotherInstallationEndsAWatch(t *testing.T) {
	t.Parallel()
	_, c := newScript(t, lines(one, `{"type":"closed","reason":"age"}`), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Reconciler-Installation", "other")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // a response without end, which must not be waited for
	})
	_, err := collect(t.Context(), c, client.WatchOptions{})
	require.ErrorIs(t, err, client.ErrInstallation)
	require.ErrorContains(t, err, "was installation i and is other now")
}

// answers answers requests without a network.
type answers func(r *http.Request) (status int, body io.Reader)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := a(r)
	return &http.Response{StatusCode: status, Header: http.Header{"Reconciler-Installation": {"i"}}, Body: io.NopCloser(body), Request: r}, nil
}

// A server, or a proxy, may end every response as soon as it has begun.
func TestF175_PausesGrowUntilAResponseBringsObjectsOrLasts(t *testing.T) {
	t.Parallel()
	const checkpoint, age = `{"type":"checkpoint","bookmark":"b"}` + "\n", `{"type":"closed","reason":"age"}` + "\n"
	for name, nothing := range map[string]string{
		"Nothing":     "",
		"Closed":      checkpoint + age,
		"Cut":         checkpoint,
		"AlwaysReset": `{"type":"reset","reason":"unknown"}` + "\n" + one + "\n" + `{"type":"end_of_snapshot","bookmark":"b"}` + "\n" + age,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var ended time.Time
				var pauses []time.Duration
				c, err := client.New("http://server", client.HTTPClient(&http.Client{Transport: answers(func(*http.Request) (int, io.Reader) {
					if !ended.IsZero() {
						pauses = append(pauses, time.Since(ended))
					}
					ended = time.Now()
					switch len(pauses) {
					case 9: // it brings an object
						return 200, strings.NewReader(gone + "\n" + checkpoint + age)
					case 12: // it lasts
						ended = ended.Add(20 * time.Second)
						body, w := io.Pipe()
						time.AfterFunc(20*time.Second, func() { _, _ = io.WriteString(w, age) })
						return 200, body
					case 14:
						return 401, strings.NewReader("")
					}
					return 200, strings.NewReader(nothing)
				})}))
				require.NoError(t, err)
				frames, err := collect(t.Context(), c, client.WatchOptions{})
				require.ErrorIs(t, err, client.ErrUnauthorized)
				if name == "Closed" {
					require.Equal(t, []string{"checkpoint b", "checkpoint b", "checkpoint b", "waiting the server closes each response before it brings objects"}, frames[:4])
				}
				for n, doubled := range []int{0, 1, 2, 3, 4, 5, 6, 7, 7, 0, 1, 2, 0, 1} {
					most := min(200*time.Millisecond<<doubled, 15*time.Second)
					require.LessOrEqual(t, pauses[n], most, n)
					require.GreaterOrEqual(t, pauses[n], most/2, n)
				}
			})
		})
	}
}

// A connection over which nothing comes is lost, though the other side has not closed it.
func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	_, c := newScript(t,
		func(w http.ResponseWriter, r *http.Request) {
			lines(`{"type":"checkpoint","bookmark":"b1"}`)(w, r)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		lines(`{"type":"closed","reason":"released"}`),
	)
	var reasons []string
	err := c.WatchPatiently(t.Context(), "eu", time.Second, func(f client.Frame) bool {
		reasons = append(reasons, f.Reason)
		return true
	})
	require.ErrorIs(t, err, client.ErrReleased)
	require.Equal(t, []string{"", "the server has sent nothing for too long"}, reasons)
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, c := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		lines(one)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var last error
	for f, err := range c.Watch(ctx, "eu", client.WatchOptions{}) {
		last = err
		if f.Type == client.Upsert {
			cancel(why)
		}
	}
	require.Equal(t, why, last)
}

// A range loop that ends does not get another pair, and the connection is closed.
func TestWatchEndsWithItsLoop(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	_, c := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		lines(one, one)(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	for _, err := range c.Watch(ctx, "eu", client.WatchOptions{}) {
		require.NoError(t, err)
		cancel() // which adds no pair to a loop that has ended
		break
	}
	cancel()
	<-ended
}

// A token is read for each connection, so that it can be changed; it is in no log.
func TestTokenIsReadForEachConnection(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("first\nsecond\n")
	s := &script{t: t, answers: []func(http.ResponseWriter, *http.Request){
		func(w http.ResponseWriter, r *http.Request) {
			write("")
			lines(one, "cut")(w, r)
		},
		status(401, "no"),
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	var log bytes.Buffer
	c, err := client.New(server.URL, client.HTTPClient(server.Client()), client.TokenFile(file), client.Logger(slog.New(slog.NewTextHandler(&log, nil))))
	require.NoError(t, err)
	var seen []string
	for f, err := range c.Watch(t.Context(), "eu", client.WatchOptions{}) {
		if err != nil {
			require.ErrorIs(t, err, client.ErrUnauthorized)
			break
		}
		if strings.Contains(f.Reason, "is empty") {
			write("third")
		}
		seen = append(seen, f.Reason)
	}
	require.Equal(t, []string{"Bearer first", "Bearer third"}, s.tokens)
	require.Len(t, seen, 3, "an object, the cut, and a file that is being written")
	require.Contains(t, log.String(), "stream_cut")
	require.NotContains(t, log.String(), "first")
}

func TestEachRequestCarriesTheToken(t *testing.T) {
	t.Parallel()
	s := &script{answers: []func(http.ResponseWriter, *http.Request){lines(one), lines(one)}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.HTTPClient(server.Client()), client.Token("first\n"))
	require.NoError(t, err)
	for range 2 {
		_, err = c.Get(t.Context(), "eu", "app", "1")
		require.NoError(t, err)
	}
	require.Equal(t, []string{"Bearer first", "Bearer first"}, s.tokens)
}

func TestGetReturnsAnObject(t *testing.T) {
	t.Parallel()
	s, c := newScript(t, lines(one), status(404, "no such object"))
	o, err := c.Get(t.Context(), "eu", "app", "a/b c")
	require.NoError(t, err)
	require.Equal(t, client.Object{Resource: "app", Key: "1", Version: 1, Revision: 1, Hash: "ab", Spec: []byte(`{"id": 1}`)}, o)
	_, err = c.Get(t.Context(), "eu", "app", "2")
	require.ErrorIs(t, err, client.ErrNotFound)
	require.Equal(t, "/v1/targets/eu/objects/app/a%2Fb%20c?", s.queries[0])
	_, err = c.Get(t.Context(), "eu", "app", "..")
	require.ErrorContains(t, err, `".." names nothing`)
}

func TestBadClientsAreRefused(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for _, c := range []struct {
		server, want string
		opts         []client.Option
	}{
		{server: "127.0.0.1:8081", want: "server must be a URL with http or https, such as http://127.0.0.1:8081"},
		{server: "localhost", want: `server must be a URL with http or https`},
		{server: "ftp://localhost", want: `server must be a URL with http or https`},
		{server: "http://user:secret@localhost", want: "without user, query and fragment"},
		{server: "http://secret/word@localhost", want: "without user, query and fragment"}, // F136
		{server: "http://user:secret\x7f", want: "server must be a URL with http or https"},
		{server: "http://localhost?x=1", want: "without user, query and fragment"},
		{server: "http://localhost", want: "read the token: open /nowhere", opts: []client.Option{client.TokenFile("/nowhere")}},
		{server: "http://localhost", want: "is empty", opts: []client.Option{client.TokenFile(empty)}},
		{server: "http://localhost", want: "read the token: Token is empty", opts: []client.Option{client.Token("")}},
		{server: "http://localhost", want: "read the token: Token has characters that no token has", opts: []client.Option{client.Token("a b")}},
		{server: "http://localhost", want: "Token and TokenFile exclude each other", opts: []client.Option{client.Token("a"), client.TokenFile(empty)}},
		{server: "http://localhost", want: "has a timeout of 1s", opts: []client.Option{client.HTTPClient(&http.Client{Timeout: time.Second})}},
	} {
		_, err := client.New(c.server, c.opts...)
		require.ErrorContains(t, err, c.want, c.server)
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestErrorsOfTheConnectionHaveNoBookmark(t *testing.T) {
	t.Parallel()
	c, err := client.New("http://127.0.0.1:1")
	require.NoError(t, err)
	for f, err := range c.Watch(t.Context(), "eu", client.WatchOptions{Since: "a-bookmark"}) {
		require.NoError(t, err)
		require.Contains(t, f.Reason, `"http://127.0.0.1:1/v1/targets/eu/objects"`)
		break
	}
}
