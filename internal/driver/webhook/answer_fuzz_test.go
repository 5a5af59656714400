package webhook

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const fuzzedSecret = "s3cr3t-t0ken"

// answering is an endpoint that gives one answer, whatever it is asked.
type answering struct {
	status int
	header http.Header
	body   []byte
}

func (a answering) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	return &http.Response{
		StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// FuzzAnswer: whatever an endpoint answers, the outcome is one that the ledger can hold.
func FuzzAnswer(f *testing.F) {
	for _, after := range []string{
		"", "0", "30", " 1 ", "-5", "soon", "1.5", "+3", "3601", "18446744073709551615", "99999999999999999999", "Fri, 02 Jan 2026 03:05:05 GMT",
		"Friday, 02-Jan-26 03:05:05 GMT", "Fri Jan  2 03:05:05 2026", "Fri, 02 Jan 9999 03:05:05 GMT", "Mon, 01 Jan 0001 00:00:00 GMT", "30\x00",
	} {
		f.Add(uint16(429), after, "", "", []byte("later"), []byte{}, false)
		f.Add(uint16(503), after, "Fri, 02 Jan 2026 03:04:05 GMT", "", []byte("\xff\x00"), []byte("\n"), true)
	}
	for _, location := range []string{"", "/x", "https://other:1/x", "http://[::1", "http://a b/", "//" + fuzzedSecret, "http://\x7f/" + fuzzedSecret, strings.Repeat("h", 900), "http://" + strings.Repeat(fuzzedSecret, 50), "http://[" + strings.Repeat("h", 900)} {
		f.Add(uint16(308), "", "", location, []byte("x"), []byte("y"), false)
	}
	for _, status := range []uint16{0, 100, 200, 204, 301, 304, 401, 404, 407, 410, 422, 501, 599, 999, 65535} {
		f.Add(status, "5", "", "", []byte(strings.Repeat("é", 200)), []byte(strings.Repeat("\x80", 400)), status%2 == 0)
	}
	f.Fuzz(func(t *testing.T, status uint16, after, date, location string, before, behind []byte, deleting bool) {
		header := http.Header{"Retry-After": {after}, "Date": {date}, "Location": {location}}
		h := fuzzedHook(t, answering{int(status), header, append(append(bytes.Clone(before), fuzzedSecret...), behind...)})
		ref := driver.Ref{Target: "eu", Resource: "apps", Key: "web"}
		outcome, none := h.Apply(t.Context(), driver.Object{Ref: ref, Spec: []byte(`{}`)}), false
		if deleting {
			outcome, none = h.Delete(t.Context(), ref), status == http.StatusNotFound || status == http.StatusGone
		}
		require.Equal(t, status >= 200 && status < 300 || none, outcome.Verdict == driver.VerdictDone, "status %d", status)
		require.Equal(t, outcome.Verdict == driver.VerdictRetryAfter, outcome.After > 0)
		require.LessOrEqual(t, outcome.After, time.Hour)
		unhealthy := (&healthEndpoint{of: h, at: h.address}).Health(t.Context())
		require.Equal(t, status >= 200 && status < 300, unhealthy == nil, "status %d", status)
		if unhealthy != nil {
			requirePresentable(t, unhealthy.Error())
		}
		if outcome.Verdict == driver.VerdictDone {
			require.NoError(t, outcome.Err)
			return
		}
		requirePresentable(t, outcome.Err.Error())
	})
}

func fuzzedHook(t *testing.T, endpoint http.RoundTripper) *hook {
	t.Helper()
	opened, err := Kind().Open("eu", driver.Options{"url": "http://hooks.internal/apply", "secret_env": "HOOK_SECRET"},
		driver.Env{Getenv: func(string) string { return fuzzedSecret }})
	require.NoError(t, err)
	h := opened.(*hook)
	h.client.Transport = endpoint
	h.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	return h
}

// requirePresentable checks that a text can stand in the ledger and in a terminal. C69: and that it shows no secret.
func requirePresentable(t *testing.T, text string) {
	t.Helper()
	require.NotEmpty(t, text)
	require.LessOrEqual(t, len(text), 2*bodyShownMax)
	require.True(t, utf8.ValidString(text), "%q", text)
	require.Equal(t, -1, strings.IndexFunc(text, unicode.IsControl), "%q", text)
	require.NotContains(t, text, fuzzedSecret)
}
