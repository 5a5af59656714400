package webhook_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

func object(resource, key, spec string) driver.Object {
	return driver.Object{
		Ref:  driver.Ref{Target: "eu", Resource: resource, Key: key, Revision: 41, Term: 3},
		Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec)),
	}
}

// seen is a request as the endpoint got it.
type seen struct {
	method, path, query, body string
	header                    http.Header
}

// endpoint answers every request the same way, and hands the requests to the test.
func endpoint(t *testing.T, answer http.HandlerFunc) (url string, requests chan seen) {
	t.Helper()
	requests = make(chan seen, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(body), r.Header}
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

// What an endpoint answers stands, also when the rest of the answer does not come.
func TestF85_ASlowBodyKeepsItsVerdict(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]driver.Verdict{200: driver.VerdictDone, 422: driver.VerdictTerminal, 429: driver.VerdictRetryAfter, 500: driver.VerdictBackoff} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", map[bool]string{true: "30"}[status == 429])
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "the first line\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			ctx, cancel := context.WithTimeout(t.Context(), pgtest.Patience)
			defer cancel()
			d := open(t, driver.Options{"url": url})
			outcome := d.Apply(ctx, object("apps", "a", `{}`))
			require.NoError(t, ctx.Err(), "it is not waited for the rest until the time is up")
			require.Equal(t, want, outcome.Verdict)
			if want != driver.VerdictDone {
				require.ErrorContains(t, outcome.Err, fmt.Sprintf("PUT %s: %d %s: the first line", url, status, http.StatusText(status)))
			}
		})
	}
}

func TestRequestsCarryTheObject(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	d := open(t, driver.Options{"url": url + "/hooks/?v=1", "headers": map[string]any{"x-team": "infra"}})
	obj := object("apps", "köln/1", `{"b": "<&>", "a":  1.50}`)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
	require.Equal(t, driver.Done(), d.Delete(t.Context(), obj.Ref))

	put, del := <-requests, <-requests
	require.Equal(t, "PUT /hooks/apps/k%C3%B6ln%252F1 v=1", put.method+" "+put.path+" "+put.query)
	require.Equal(t, `{"action":"apply","target":"eu","resource":"apps","key":"köln/1","revision":41,"term":3,"hash":"`+
		obj.Hash.String()+`","spec":{"b": "<&>", "a":  1.50}}`, put.body)
	require.Equal(t, "DELETE /hooks/apps/k%C3%B6ln%252F1", del.method+" "+del.path)
	require.Equal(t, `{"action":"delete","target":"eu","resource":"apps","key":"köln/1","revision":41,"term":3}`, del.body)
	for _, request := range []seen{put, del} {
		require.Equal(t, "application/json", request.header.Get("Content-Type"))
		require.Equal(t, "reconciler", request.header.Get("User-Agent"))
		require.Equal(t, "infra", request.header.Get("X-Team"))
		require.Regexp(t, `^\d{10}$`, request.header.Get("Webhook-Timestamp"))
		require.Regexp(t, `^msg_[0-9a-f]{32}$`, request.header.Get("Webhook-Id"))
		require.Equal(t, request.header.Get("Webhook-Id"), request.header.Get("Idempotency-Key"))
		require.Empty(t, request.header.Get("Webhook-Signature"), "there is no secret")
	}
}

func TestMethodsCanBeChosen(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	d := open(t, driver.Options{"url": url, "apply_method": "PATCH", "delete_method": "POST"})
	obj := object("apps", "web", `{}`)
	require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
	require.Equal(t, "PATCH", (<-requests).method)
	require.Equal(t, driver.Done(), d.Delete(t.Context(), obj.Ref))
	require.Equal(t, "POST", (<-requests).method)
}

// C33: what a receiver needs to know a repeated request.
func TestTheMessageIDIsThatOfTheThingAndNotOfTheAttempt(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	d := open(t, driver.Options{"url": url})
	id := func(change func(*driver.Object)) string {
		obj := object("apps", "web", `{"n": 1}`)
		change(&obj)
		require.Equal(t, driver.Done(), d.Apply(t.Context(), obj))
		return (<-requests).header.Get("Webhook-Id")
	}
	first := id(func(*driver.Object) {})
	require.Equal(t, first, id(func(*driver.Object) {}))
	ids := map[string]bool{first: true}
	for _, change := range []func(*driver.Object){
		func(o *driver.Object) { o.Revision++ },
		func(o *driver.Object) { o.Term++ },
		func(o *driver.Object) { o.Key = "web2" },
		func(o *driver.Object) { o.Resource = "jobs" },
		func(o *driver.Object) { o.Target = "us" },
		func(o *driver.Object) { o.Spec = []byte(`{"n": 2}`) },
	} {
		ids[id(change)] = true
	}
	require.Equal(t, driver.Done(), d.Delete(t.Context(), object("apps", "web", `{"n": 1}`).Ref))
	ids[(<-requests).header.Get("Webhook-Id")] = true
	require.Len(t, ids, 8)
}

func TestPlaceholdersSayWhereNamesStand(t *testing.T) {
	t.Parallel()

	url, requests := endpoint(t, nil)
	d := open(t, driver.Options{"url": url + "/v1/{target}/{resource}/app-{key}.json?full={resource}/{key}&x=1"})
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("a b", "../&{target}", `{}`)))
	request := <-requests
	require.Equal(t, "/v1/eu/a%20b/app-%252E.%252F&%7Btarget%7D.json", request.path)
	require.Equal(t, "full=a+b/..%2F%26%7Btarget%7D&x=1", request.query)
}

// C68: whatever the name, the router that people use finds the route that was meant, and the name.
func TestNoNameLeavesItsRoute(t *testing.T) {
	t.Parallel()

	got := make(chan [2]string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /hooks/{resource}/{key}", func(_ http.ResponseWriter, r *http.Request) {
		got <- [2]string{r.PathValue("resource"), r.PathValue("key")}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		got <- [2]string{"outside", r.URL.Path}
		w.WriteHeader(http.StatusNotFound)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d := open(t, driver.Options{"url": server.URL + "/hooks"})
	for name, want := range map[string]string{
		"web": "web", "a b": "a b", "köln": "köln", "": "%", ".": "%2E", "..": "%2E.", "../../admin": "%2E.%2F..%2Fadmin", "/": "%2F",
		"a/../b": "a%2F..%2Fb", `..\x`: "%2E.%5Cx", "%2e%2e%2f": "%252e%252e%252f", "a?b#c": "a?b#c", "..;/": "%2E.;%2F", "{key}": "{key}",
		"x\r\nHost: evil": "x%0D%0AHost: evil", "a+b": "a+b",
	} {
		require.Equal(t, driver.Done(), d.Apply(t.Context(), object(name, "k", `{}`)), "name %q", name)
		require.Equal(t, [2]string{want, "k"}, <-got)
		require.Equal(t, driver.Done(), d.Apply(t.Context(), object("r", name, `{}`)), "name %q", name)
		require.Equal(t, [2]string{"r", want}, <-got)
	}
}

// C69.
func TestAnErrorQuotesTheAnswerAndHidesSecrets(t *testing.T) {
	t.Parallel()

	url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = io.WriteString(w, "no:\n\t"+r.Header.Get("Authorization")+" "+token+" "+secret+" \x00\xff"+strings.Repeat("x", 1000))
	})
	d := open(t, driver.Options{
		"url": url + "/private/path", "secret_env": "HOOK_SECRET", "headers_env": map[string]any{"authorization": "HOOK_TOKEN"},
	})
	o := d.Apply(t.Context(), object("apps", "web", `{}`))
	require.Equal(t, driver.VerdictTerminal, o.Verdict)
	text := "PUT " + url + ": 422 Unprocessable Entity: no: [HOOK_TOKEN] [HOOK_TOKEN] [HOOK_SECRET] \uFFFD"
	require.Equal(t, text, o.Err.Error()[:len(text)])
	require.Less(t, len(o.Err.Error()), 450)
	require.True(t, strings.HasSuffix(o.Err.Error(), "xxx..."))
}

// C69: the answer is cut in the middle of a secret.
func TestASecretIsHiddenBeforeTheAnswerIsCut(t *testing.T) {
	t.Parallel()

	for before := 280; before < 300; before++ {
		url, _ := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, strings.Repeat("x", before)+token+token)
		})
		d := open(t, driver.Options{"url": url, "headers_env": map[string]any{"Authorization": "HOOK_TOKEN"}})
		require.NotContains(t, d.Apply(t.Context(), object("apps", "web", `{}`)).Err.Error(), token[:3])
	}
}

// C69: an answer that repeats the URL.
func TestASecretURLIsInNoError(t *testing.T) {
	t.Parallel()

	url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, user+" "+password+" "+r.Header.Get("Authorization")+" "+r.URL.String())
	})
	path := filepath.Join(t.TempDir(), "url")
	address := strings.Replace(url, "http://", "http://user:pa55word@", 1) + "/T0KEN-IN-PATH/?api_key=k3y-value"
	require.NoError(t, os.WriteFile(path, []byte(address+"\n"), 0o600))
	o := open(t, driver.Options{"url_file": path}).Apply(t.Context(), object("apps", "web", `{}`))
	require.EqualError(t, o.Err, "PUT "+url+": 503 Service Unavailable: user [options.url_file] Basic [options.url_file] "+
		"/[options.url_file]/apps/web?api_key=[options.url_file]")

	refused := open(t, driver.Options{"url": "http://user:pa55word@127.0.0.1:1/path"}).Apply(t.Context(), object("apps", "web", `{}`))
	require.Equal(t, driver.VerdictUnreachable, refused.Verdict)
	require.EqualError(t, refused.Err, "PUT http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")
}

// C55: a time of day to call again at is meant by the clock of who says it.
func TestATimeToCallAgainIsByTheEndpointsClock(t *testing.T) {
	t.Parallel()

	for name, c := range map[string]struct {
		clock time.Duration // how far the endpoint's is ahead of ours
		dated bool
	}{
		"Ahead":   {clock: time.Hour, dated: true},
		"Behind":  {clock: -time.Hour, dated: true},
		"Undated": {},
	} {
		url, _ := endpoint(t, func(w http.ResponseWriter, _ *http.Request) {
			now := time.Now().Add(c.clock).UTC()
			w.Header()["Date"] = nil
			if c.dated {
				w.Header().Set("Date", now.Format(http.TimeFormat))
			}
			w.Header().Set("Retry-After", now.Add(30*time.Second).Format(http.TimeFormat))
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		out := open(t, driver.Options{"url": url}).Apply(t.Context(), object("apps", "web", `{}`))
		require.Equal(t, driver.VerdictRetryAfter, out.Verdict, name)
		require.InDelta(t, 25, out.After.Seconds(), 5, name)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()

	elsewhere, requests := endpoint(t, nil)
	for status, text := range map[int]string{
		301: "301 Moved Permanently", 302: "302 Found", 303: "303 See Other", 307: "307 Temporary Redirect", 308: "308 Permanent Redirect",
	} {
		url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere+"/x?secret=1", status) })
		o := open(t, driver.Options{"url": url}).Apply(t.Context(), object("apps", "web", `{}`))
		require.Equal(t, driver.VerdictBackoff, o.Verdict)
		require.EqualError(t, o.Err, "PUT "+url+": "+text+" to "+elsewhere+
			" (redirects are not followed: set options.url to the final address)")
	}
	require.Empty(t, requests)
}

func TestAnEndpointThatIsNotThereIsUnreachable(t *testing.T) {
	t.Parallel()

	trusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	trusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	trusted.StartTLS()
	t.Cleanup(trusted.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for name, c := range map[string]struct{ url, text string }{
		"Refused":     {"http://127.0.0.1:1", "dial tcp 127.0.0.1:1: connect: connection refused"},
		"NoSuchHost":  {"http://no..host", "dial tcp: lookup no..host: no such host"},
		"UnknownCA":   {trusted.URL, "tls: failed to verify certificate: x509: certificate signed by unknown authority"},
		"NotTLSAtAll": {strings.Replace(plain.URL, "http:", "https:", 1), "http: server gave HTTP response to HTTPS client"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := open(t, driver.Options{"url": c.url}).Apply(t.Context(), object("apps", "web", `{}`))
			require.Equal(t, driver.VerdictUnreachable, o.Verdict, "%v", o.Err)
			require.True(t, strings.HasPrefix(o.Err.Error(), "PUT "+c.url+": "), o.Err.Error())
			require.True(t, strings.HasSuffix(o.Err.Error(), c.text), o.Err.Error())
		})
	}
}

func TestACAFileIsTrusted(t *testing.T) {
	t.Parallel()

	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(path, certificate, 0o600))
	d := open(t, driver.Options{"url": server.URL, "ca_file": path})
	require.Equal(t, driver.Done(), d.Apply(t.Context(), object("apps", "web", `{}`)))
}

func TestTimeAndCancellation(t *testing.T) {
	t.Parallel()

	t.Run("NoAnswerInTimeBacksOff", func(t *testing.T) {
		t.Parallel()

		ctx, cancel := context.WithCancelCause(t.Context())
		url, _ := endpoint(t, func(_ http.ResponseWriter, r *http.Request) {
			cancel(errors.New("too slow"))
			<-r.Context().Done()
		})
		o := open(t, driver.Options{"url": url}).Apply(ctx, object("apps", "web", `{}`))
		require.Equal(t, driver.VerdictBackoff, o.Verdict)
		require.EqualError(t, o.Err, "PUT "+url+": too slow")
	})
	t.Run("NoConnectionInTimeIsUnreachable", func(t *testing.T) {
		t.Parallel()

		// It accepts connections and never says a word, so the TLS handshake takes for ever.
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		url := "https://" + listener.Addr().String()
		o := open(t, driver.Options{"url": url, "connect_timeout": "100ms"}).Apply(t.Context(), object("apps", "web", `{}`))
		require.Equal(t, driver.VerdictUnreachable, o.Verdict)
		require.EqualError(t, o.Err, "PUT "+url+": net/http: TLS handshake timeout")

		ctx, cancel := context.WithTimeoutCause(t.Context(), 1, errors.New("the call's time is up"))
		defer cancel()
		<-ctx.Done()
		require.Equal(t, driver.VerdictBackoff, open(t, driver.Options{"url": url}).Apply(ctx, object("apps", "web", `{}`)).Verdict)
	})
	t.Run("AConnectionThatBreaksOffBacksOff", func(t *testing.T) {
		t.Parallel()

		var calls atomic.Int32
		url, _ := endpoint(t, func(http.ResponseWriter, *http.Request) {
			calls.Add(1)
			panic(http.ErrAbortHandler)
		})
		o := open(t, driver.Options{"url": url}).Apply(t.Context(), object("apps", "web", `{}`))
		require.Equal(t, driver.VerdictBackoff, o.Verdict)
		require.EqualError(t, o.Err, "PUT "+url+": EOF")
		require.EqualValues(t, 1, calls.Load())
	})
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()

	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, strings.Repeat("x", 20<<10))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	d := open(t, driver.Options{"url": server.URL})
	for range 20 {
		require.Equal(t, driver.VerdictBackoff, d.Apply(t.Context(), object("apps", "web", `{}`)).Verdict)
	}
	require.EqualValues(t, 1, opened.Load())
}

// I9.
func TestAnEndlessAnswerIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()

	url, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	require.Equal(t, driver.Done(), open(t, driver.Options{"url": url}).Apply(t.Context(), object("apps", "web", `{}`)))
}
