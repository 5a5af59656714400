package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// connectTimeout bounds what comes before the header of a response.
	connectTimeout = 15 * time.Second
	// errorMost is how many bytes of an error's response are read.
	errorMost = 64 << 10
	// protocol is the one that this package speaks.
	protocol = 1
)

// Errors that another attempt would not change. Watch and Get return a *StatusError for which errors.Is holds.
var (
	ErrUnauthorized = errors.New("unauthorized")           // 401: there is no valid token
	ErrForbidden    = errors.New("forbidden")              // 403: the token may not read this target or resource
	ErrNotFound     = errors.New("not found")              // 404: the target has no stream, or there is no such object
	ErrReleased     = errors.New("the stream is released") // it ended; conclude nothing about its objects
	ErrInstallation = errors.New("another installation")   // the server has become one of another database
	ErrStream       = errors.New("another stream")         // see InformerOptions.SameStream
	ErrProtocol     = errors.New("another protocol")       // the server speaks a newer one than this package
)

// StatusError is an answer with a status that is not 200.
type StatusError struct {
	Status  int
	Message string // of the server
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s (status %d)", e.Message, e.Status) }

// Is reports whether target is the error of the status.
func (e *StatusError) Is(target error) bool {
	switch e.Status {
	case http.StatusUnauthorized:
		return target == ErrUnauthorized
	case http.StatusForbidden:
		return target == ErrForbidden
	case http.StatusNotFound:
		return target == ErrNotFound
	}
	return false
}

// permanent reports whether the same request would be answered in the same way.
func (e *StatusError) permanent() bool {
	return e.Status >= 400 && e.Status < 500 && e.Status != http.StatusRequestTimeout && e.Status != http.StatusTooManyRequests
}

// Client asks one server, or several behind one name. It may be used by several goroutines.
type Client struct {
	server    *url.URL
	http      *http.Client
	tokenFile string
	tokenText *string // instead of tokenFile; nil: none
	tls       *tls.Config
	log       *slog.Logger
	info      func() Info   // see Identity; nil: none
	session   string        // of reports: 128 random bits
	reporting chan struct{} // held while a report is under way, size one
	seq       uint64        // of the last report; reporting guards it

	mu           sync.Mutex // guards what follows
	installation string     // of the server; "": not known yet
}

// Option changes a Client.
type Option func(*Client)

// TokenFile has each request carry the token in a file, which is read again for each connection. Of several lines the
// first one counts.
func TokenFile(path string) Option { return func(c *Client) { c.tokenFile = path } }

// Token has each request carry a token. It is not for use beside TokenFile.
func Token(token string) Option { return func(c *Client) { c.tokenText = &token } }

// TLS sets certificates. It is not for use beside HTTPClient.
func TLS(config *tls.Config) Option { return func(c *Client) { c.tls = config } }

// HTTPClient replaces the HTTP client. It must have no Timeout: responses do not end.
func HTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// Logger gets a line when a connection is lost and when it is there again. By default nothing is logged.
func Logger(log *slog.Logger) Option { return func(c *Client) { c.log = log } }

// Info is what a client tells of itself. All of it is optional.
type Info struct {
	Name    string `json:"name,omitempty"`    // of the process; cut after 128 bytes
	Version string `json:"version,omitempty"` // of the program; cut after 64 bytes
	Driver  string `json:"driver,omitempty"`  // what makes the objects real; cut after 64 bytes
	Held    int    `json:"held,omitempty"`    // deletes that wait for approval
	Trouble string `json:"trouble,omitempty"` // what is wrong with the far side as a whole; cut after 1,000 bytes
	Healthy *bool  `json:"healthy,omitempty"` // the far side as a whole; nil: not known
}

// Identity is asked for each report, which carries the answer. It shows in reconciler.agents.
func Identity(info func() Info) Option { return func(c *Client) { c.info = info } }

// New returns a client of the server at a URL, such as "https://reconciler.example.org:8443". It connects to nothing.
func New(server string, opts ...Option) (*Client, error) {
	// No error quotes the URL: it may hold a password, and one with "/" or "#" in it is parsed as a host and a path.
	u, err := url.Parse(server)
	if strings.ContainsAny(server, "@?#") {
		return nil, errors.New("server must be a URL without user, query and fragment, such as http://127.0.0.1:8081; the token is given apart")
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("server must be a URL with http or https, such as http://127.0.0.1:8081")
	}
	c := &Client{server: u, log: slog.New(slog.DiscardHandler), session: newSession(), reporting: make(chan struct{}, 1)}
	for _, opt := range opts {
		opt(c)
	}
	switch {
	case c.http == nil:
		c.http = &http.Client{Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: connectTimeout}).DialContext,
			TLSClientConfig:       c.tls,
			TLSHandshakeTimeout:   connectTimeout,
			ResponseHeaderTimeout: connectTimeout,
			ForceAttemptHTTP2:     true,
			IdleConnTimeout:       time.Minute,
		}}
	case c.tls != nil:
		return nil, errors.New("TLS and HTTPClient exclude each other: set the certificates of the HTTP client")
	case c.http.Timeout != 0:
		return nil, fmt.Errorf("the HTTP client has a timeout of %s, which would cut streams: use contexts", c.http.Timeout)
	}
	if c.tokenFile != "" && c.tokenText != nil {
		return nil, errors.New("Token and TokenFile exclude each other")
	}
	if _, err := c.token(); err != nil {
		return nil, err
	}
	return c, nil
}

// Get returns one object. If the target has no such object, errors.Is(err, ErrNotFound) holds.
func (c *Client) Get(ctx context.Context, target, resource, key string) (Object, error) {
	resp, err := c.get(ctx, nil, target, "objects", resource, key) //nolint:bodyclose // drain does
	if err != nil {
		return Object{}, err
	}
	defer drain(resp.Body)
	var o Object
	if err := json.NewDecoder(resp.Body).Decode(&o); err != nil {
		return Object{}, fmt.Errorf("read object %s/%s of target %s: %w", resource, key, target, err)
	}
	return o, nil
}

// get asks for what is at a path below /v1/targets. The caller closes the body.
func (c *Client) get(ctx context.Context, query url.Values, path ...string) (*http.Response, error) {
	return c.do(ctx, http.MethodGet, http.NoBody, query, path...)
}

// do makes a request. The caller closes the body of the response.
func (c *Client) do(ctx context.Context, method string, body io.Reader, query url.Values, path ...string) (*http.Response, error) {
	u := *c.server
	for i, element := range path {
		if element == "" || element == "." || element == ".." {
			return nil, &StatusError{Status: http.StatusBadRequest, Message: fmt.Sprintf("%q names nothing in %q", element, path)}
		}
		path[i] = url.PathEscape(element)
	}
	u = *u.JoinPath(append([]string{"v1", "targets"}, path...)...)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Reconciler-Protocol", strconv.Itoa(protocol))
	resp, err := c.http.Do(req)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			failed.URL, _, _ = strings.Cut(failed.URL, "?") // a bookmark is nothing to read
		}
		return nil, err
	}
	if err := c.accept(resp); err != nil {
		if resp.StatusCode == http.StatusOK {
			_ = resp.Body.Close() // a stream of another installation has no end
		} else {
			drain(resp.Body)
		}
		return nil, err
	}
	return resp, nil
}

// accept returns an error for a response that is not what was asked for.
func (c *Client) accept(resp *http.Response) error {
	if speaks, err := strconv.Atoi(resp.Header.Get("Reconciler-Protocol")); err == nil && speaks > protocol {
		return fmt.Errorf("%w: the server speaks protocol %d, and this client %d: upgrade the client", ErrProtocol, speaks, protocol)
	}
	installation := resp.Header.Get("Reconciler-Installation")
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, errorMost))
		var answer struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(text, &answer) != nil || answer.Error == "" {
			answer.Error = fmt.Sprintf("%s answers %s", c.server.Host, resp.Status)
		}
		if installation == "" && resp.StatusCode == http.StatusNotFound {
			// A proxy that knows no server now may know one later.
			return fmt.Errorf("%s is not a stream of reconciler: %s", resp.Request.URL.Redacted(), answer.Error)
		}
		return &StatusError{Status: resp.StatusCode, Message: answer.Error}
	}
	if installation == "" {
		return fmt.Errorf("%s answers, but not as reconciler does: there is no header Reconciler-Installation", c.server.Host)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.installation != "" && c.installation != installation {
		return fmt.Errorf("%w: %s was installation %s and is %s now", ErrInstallation, c.server.Host, c.installation, installation)
	}
	c.installation = installation
	return nil
}

// Installation returns the id of the database behind the server, as the first response or the store of an informer named it; "" before.
func (c *Client) Installation() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.installation
}

// token returns the token of requests, "" for none.
func (c *Client) token() (string, error) {
	var text []byte
	from := c.tokenFile
	switch {
	case c.tokenText != nil:
		text, from = []byte(*c.tokenText), "Token"
	case c.tokenFile == "":
		return "", nil
	default:
		var err error
		if text, err = os.ReadFile(c.tokenFile); err != nil {
			return "", fmt.Errorf("read the token: %w", err)
		}
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	token := bytes.TrimSpace(line)
	if len(token) == 0 {
		return "", fmt.Errorf("read the token: %s is empty", from)
	}
	for _, b := range token {
		if b <= ' ' || b > '~' {
			return "", fmt.Errorf("read the token: %s has characters that no token has", from)
		}
	}
	return string(token), nil
}

// drain reads what little is left of a response, so that its connection can be used again.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, errorMost)
	_ = body.Close()
}
