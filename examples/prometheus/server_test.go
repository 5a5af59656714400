//go:build long

package prometheus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/examples/internal/exampletest"
	"github.com/pgreconciler/reconciler/examples/prometheus"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

const (
	patience       = pgtest.Patience
	scrapeInterval = "100ms"
	apiPoll        = 10 * time.Millisecond
)

// server is a Prometheus that watches a directory.
type server struct {
	url    string
	client *http.Client
}

// scraped is what Prometheus says about one of its targets.
type scraped struct {
	Labels string // but for instance, such as env:test job:api
	Health string
}

// startServer starts Debian's Prometheus with the example's prometheus.yml.
func startServer(t *testing.T, dir string) *server {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		program, err = exec.LookPath("/usr/bin/prometheus")
	}
	require.NoError(t, err, "this test needs a Prometheus server: apt-get install --no-install-recommends prometheus")

	config := prometheus.ServerConfig
	for old, replacement := range map[string]string{prometheus.Dir: dir, "scrape_interval: 5s": "scrape_interval: " + scrapeInterval} {
		require.Contains(t, config, old)
		config = strings.ReplaceAll(config, old, replacement)
	}
	home := t.TempDir()
	file := filepath.Join(home, "prometheus.yml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
	process := exampletest.Start(t, nil, program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(home, "data"),
		"--web.listen-address=127.0.0.1:0", "--scrape.discovery-reload-interval=20ms")
	s := &server{
		url:    "http://" + process.Printed(t, `msg="Listening on" address=(\S+)`, patience),
		client: &http.Client{Transport: &http.Transport{}},
	}
	t.Cleanup(s.client.CloseIdleConnections)
	process.Printed(t, `(Server is ready to receive web requests)`, patience)
	return s
}

func (s *server) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return body, err
}

// targets returns what Prometheus scrapes, by address.
func (s *server) targets(ctx context.Context) (map[string]scraped, error) {
	body, err := s.get(ctx, "/api/v1/targets?state=active")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Data struct {
			ActiveTargets []struct {
				Labels map[string]string `json:"labels"`
				Health string            `json:"health"`
			} `json:"activeTargets"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	found := map[string]scraped{}
	for _, active := range answer.Data.ActiveTargets {
		instance := active.Labels["instance"]
		delete(active.Labels, "instance")
		found[instance] = scraped{Labels: strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(active.Labels), "map["), "]"), Health: active.Health}
	}
	return found, nil
}

var readFile = regexp.MustCompile(`(?m)^prometheus_sd_file_mtime_seconds\{filename="([^"]+)"\}`)

// files returns the names of the files that Prometheus has read, as it says in its own metrics.
func (s *server) files(ctx context.Context) (map[string]bool, error) {
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, found := range readFile.FindAllSubmatch(body, -1) {
		names[filepath.Base(string(found[1]))] = true
	}
	return names, nil
}

// await asks until the answer is the wanted one.
func await[T any](t *testing.T, want T, ask func(context.Context) (T, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(apiPoll)
	defer poll.Stop()
	var difference string
	for {
		got, err := ask(ctx)
		if ctx.Err() == nil {
			require.NoError(t, err)
			if difference = cmp.Diff(want, got); difference == "" {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not as wanted (-) but otherwise (+) after %s:\n%s", patience, difference)
		case <-poll.C:
		}
	}
}

// endpoint is something to scrape.
type endpoint struct {
	address string
	scrapes atomic.Int64
}

func startEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		e.scrapes.Add(1)
		_, _ = io.WriteString(w, "answers_total 42\n")
	}))
	t.Cleanup(s.Close)
	e.address = strings.TrimPrefix(s.URL, "http://")
	return e
}

// scrapedMore waits for so many more scrapes.
func (e *endpoint) scrapedMore(t *testing.T, times int64) {
	t.Helper()
	want := e.scrapes.Load() + times
	await(t, true, func(context.Context) (bool, error) { return e.scrapes.Load() >= want, nil })
}
