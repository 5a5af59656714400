package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// bodyReadMax is how much of an answer is read, so that its connection can be used again.
	bodyReadMax = 64 << 10
	// bodyShownMax is how much of an answer stands in an error.
	bodyShownMax = 300
	// idleConnections is more than any sensible concurrency: closing and opening connections under load costs more.
	idleConnections = 256
	idleTimeout     = 90 * time.Second
	keepAlive       = 30 * time.Second
	// bodyWait is how long the rest of an answer is waited for: its first line has said what came of the call.
	bodyWait = 2 * time.Second
)

type hook struct {
	address  address
	client   *http.Client
	secrets  [][]byte
	headers  http.Header
	applying string // method
	deleting string // method
	scrubber driver.Scrubber
	now      func() time.Time
	place    driver.Place
}

// Place returns the URL without user, password and query.
func (h *hook) Place() driver.Place { return h.place }

func newClient(roots *x509.CertPool, connect time.Duration) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: connect, KeepAlive: keepAlive}).DialContext,
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: connect,
			ForceAttemptHTTP2:   true,
			MaxIdleConns:        idleConnections,
			MaxIdleConnsPerHost: idleConnections,
			IdleConnTimeout:     idleTimeout,
		},
		// A redirected PUT would lose its body or its signature's meaning, and could be sent anywhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Apply sends the object.
func (h *hook) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	body, err := driver.ApplyMessage(obj)
	if err != nil {
		return driver.Terminal(err)
	}
	return h.send(ctx, h.applying, driver.ActionApply, obj.Ref, body)
}

// Delete sends the object's name.
func (h *hook) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	body, err := driver.DeleteMessage(ref)
	if err != nil {
		return driver.Done() // Apply refuses such a name, so there is nothing
	}
	return h.send(ctx, h.deleting, driver.ActionDelete, ref, body)
}

// Close closes idle connections.
func (h *hook) Close(context.Context) error {
	h.client.CloseIdleConnections()
	return nil
}

func (h *hook) send(ctx context.Context, method string, action driver.Action, ref driver.Ref, body []byte) driver.Outcome {
	if ctx.Err() != nil {
		return driver.Backoff(context.Cause(ctx))
	}
	var connected atomic.Bool // the trace may be told by another goroutine
	whole, cut := context.WithCancel(ctx)
	defer cut()
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(whole, trace), method, h.address.of(ref), bytes.NewReader(body))
	if err != nil {
		// The error repeats the URL.
		return driver.Terminal(errors.New("the object's names do not make a URL"))
	}
	h.fill(req, body)
	resp, err := h.client.Do(req)
	if err != nil {
		return h.scrubber.Outcome(h.unanswered(ctx, method, connected.Load(), err))
	}
	defer resp.Body.Close()
	defer time.AfterFunc(bodyWait, cut).Stop()
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, bodyReadMax))
	outcome := answered(action, resp.StatusCode, resp.Header.Get("Retry-After"), h.timeOf(resp.Header))
	if outcome.Verdict == driver.VerdictDone {
		return outcome
	}
	outcome.Err = h.refusal(method, h.address, resp, answer)
	return outcome
}

// timeOf returns the time of an answer. That it asks to be called again at a time of day is meant by the endpoint's clock,
// which the date of the answer shows; ours may be wrong.
func (h *hook) timeOf(answer http.Header) time.Time {
	if at, err := http.ParseTime(answer.Get("Date")); err == nil {
		return at
	}
	return h.now()
}

func (h *hook) fill(req *http.Request, body []byte) {
	h.introduce(req)
	req.Header.Set("Content-Type", "application/json")
	id := messageID(body)
	// Tells endpoints that know this header, and our own transport: it may send the request again if a kept
	// connection turns out to be dead.
	req.Header.Set("Idempotency-Key", id)
	sign(req.Header, h.secrets, id, h.now(), body)
}

// introduce gives a request the headers that all of them have.
func (h *hook) introduce(req *http.Request) {
	req.Header = h.headers.Clone()
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "reconciler")
	}
}

// unanswered classifies a request without an answer. One that never had a connection says that the endpoint is
// down; one that broke off may have been this object's fault.
func (h *hook) unanswered(ctx context.Context, method string, connected bool, err error) driver.Outcome {
	said := h.silence(ctx, method, h.address, err)
	switch {
	case errors.Is(ctx.Err(), context.Canceled) || connected:
		return driver.Backoff(said)
	case ctx.Err() != nil:
		return driver.Unreachable(fmt.Errorf("%w (no connection until then)", said))
	default:
		return driver.Unreachable(said)
	}
}

// silence is the error of a request without an answer.
func (h *hook) silence(ctx context.Context, method string, at address, err error) error {
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err // without the URL
	}
	// Some errors quote what the endpoint sent, whole: a header that makes no sense, a line that is no HTTP.
	if text := err.Error(); len(text) > bodyShownMax {
		err = errors.New(driver.Snippet([]byte(h.scrubber.Text(text)), bodyShownMax))
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s %s: %w", method, at.origin, err)
}

// refusal is the error of an answer that is not a success.
func (h *hook) refusal(method string, at address, resp *http.Response, answer []byte) error {
	text := strings.TrimSpace(fmt.Sprintf("%s %s: %d %s", method, at.origin, resp.StatusCode, http.StatusText(resp.StatusCode)))
	if isRedirect(resp.StatusCode) {
		if to, err := url.Parse(resp.Header.Get("Location")); err == nil && to.Host != "" {
			text += " to " + to.Scheme + "://" + to.Host
		}
		text += " (redirects are not followed: set options." + at.option + " to the final address)"
	}
	// Scrubbed before it is shortened: half a secret would not be found.
	shown := driver.Snippet([]byte(h.scrubber.Text(string(answer))), bodyShownMax)
	if shown != "" {
		text += ": " + shown
	}
	return errors.New(driver.Snippet([]byte(h.scrubber.Text(text)), bodyShownMax*2))
}
