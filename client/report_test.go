package client_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/client/streamtest"
)

func TestReportIsLinesOfJSON(t *testing.T) {
	t.Parallel()
	var bodies, types []string
	take := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies, types = append(bodies, string(body)), append(types, r.Method+" "+r.Header.Get("Content-Type"))
		lines(`{"accepted":1,"ignored":0}`)(w, r)
	}
	s, c := newScript(t, take, take, status(403, "token \"eu\" may not report"))
	healthy := false
	require.NoError(t, c.Report(t.Context(), "eu", client.Report{Complete: true, Observations: []client.Observation{
		{Resource: "app", Key: "<1>", Version: 17, State: client.StateFailed, Message: "no",
			Healthy: &healthy, Status: json.RawMessage(`{"pods": 2}`)},
		{Resource: "app", Key: "2", Version: 3, State: client.StateAbsent},
	}}))
	require.NoError(t, c.Report(t.Context(), "eu", client.Report{}))
	err := c.Report(t.Context(), "eu", client.Report{})
	require.ErrorIs(t, err, client.ErrForbidden)
	require.EqualError(t, err, `token "eu" may not report (status 403)`)

	var head struct{ Session string }
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(bodies[0], "\n", 2)[0]), &head))
	require.Regexp(t, "^[0-9a-f]{32}$", head.Session)
	require.Equal(t, []string{
		`{"session":"` + head.Session + `","seq":1,"complete":true}
{"resource":"app","key":"<1>","version":17,"state":"failed","message":"no","healthy":false,"status":{"pods":2}}
{"resource":"app","key":"2","version":3,"state":"absent"}
{"end":true}
`,
		`{"session":"` + head.Session + `","seq":2,"complete":false}
{"end":true}
`,
	}, bodies)
	require.Equal(t, []string{"POST application/x-ndjson", "POST application/x-ndjson"}, types)
	require.Equal(t, "/v1/targets/eu/observations?", s.queries[0])
}

func TestBadObservationsAreRefused(t *testing.T) {
	t.Parallel()
	_, c := newScript(t)
	for _, b := range []struct {
		observation client.Observation
		want        string
	}{
		{client.Observation{Key: "1", Version: 1, State: client.StateApplied},
			`observation 0: the resource must be set`},
		{client.Observation{Resource: "app", Key: "1", State: client.StateApplied},
			`observation 0: app "1": the version is 0, and must be the one of a frame`},
		{client.Observation{Resource: "app", Key: "1", Version: 1, State: "fine"},
			`observation 0: app "1": the state is "fine", and must be applied, progressing, failed or absent`},
		{client.Observation{Resource: "app", Key: "1", Version: 1, State: client.StateApplied, Status: json.RawMessage("no")},
			`encode the observation of app "1": json: error calling MarshalJSON for type json.RawMessage: invalid character ` +
				`'o' in literal null (expecting 'u')`},
	} {
		err := c.Report(t.Context(), "eu", client.Report{Observations: []client.Observation{b.observation}})
		require.EqualError(t, err, b.want)
	}
}

// reports is a transport that notes what is reported, and has some reports fail.
type reports struct {
	next http.RoundTripper

	mu       sync.Mutex // guards what follows
	at       []time.Time
	seqs     []uint64
	sizes    []int
	failures []int // statuses of the next ones; 0: the answer is lost
	// A report is too large, or has an observation that the server refuses.
	largest int // 0: none is too large
	wrong   string
}

func (r *reports) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost {
		return r.next.RoundTrip(req)
	}
	body, _ := io.ReadAll(req.Body)
	req.Body = io.NopCloser(bytes.NewReader(body))
	var head struct{ Seq uint64 }
	_ = json.Unmarshal(body[:bytes.IndexByte(body, '\n')], &head)
	r.mu.Lock()
	r.at, r.seqs, r.sizes = append(r.at, time.Now()), append(r.seqs, head.Seq), append(r.sizes, bytes.Count(body, []byte("\n"))-2)
	failure := -1
	switch {
	case len(r.failures) > 0:
		failure, r.failures = r.failures[0], r.failures[1:]
	case r.largest > 0 && r.sizes[len(r.sizes)-1] > r.largest:
		failure = http.StatusRequestEntityTooLarge
	case r.wrong != "" && bytes.Contains(body, []byte(r.wrong)):
		failure = http.StatusBadRequest
	}
	r.mu.Unlock()
	if failure > 0 {
		header := http.Header{"Reconciler-Installation": {"streamtest"}}
		return &http.Response{StatusCode: failure, Header: header, Body: io.NopCloser(strings.NewReader(`{"error":"no"}`)), Request: req}, nil
	}
	resp, err := r.next.RoundTrip(req)
	if failure == 0 && err == nil {
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// reporting starts a controller whose reports fail with statuses. It returns the log and what was reported.
func reporting(t *testing.T, s *streamtest.Server, failures ...int) (log *bytes.Buffer, seen *reports, stop func()) {
	t.Helper()
	log, seen = &bytes.Buffer{}, &reports{next: s.Transport(), failures: failures}
	logger := client.Logger(slog.New(slog.NewTextHandler(log, nil)))
	c, err := client.New("http://streamtest", client.HTTPClient(&http.Client{Transport: seen}), logger)
	require.NoError(t, err)
	i := client.NewInformer(c, "eu", client.InformerOptions{})
	controller := client.NewController(i, "app", newFarSide(i).handle)
	stopInformer, stopController := start(t, i.Run), start(t, controller.Run)
	return log, seen, func() {
		stopController()
		stopInformer()
	}
}

func TestReportsAreBatched(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 2500)
		_, seen, stop := reporting(t, s)
		settle()
		first := len(seen.sizes)
		require.LessOrEqual(t, first, 5, "1,000 at once, and what there is at the start and at the end")
		for n, seq := range seen.seqs {
			require.EqualValues(t, n+1, seq)
		}
		require.Len(t, s.Observations(), 2500)
		for range 10 {
			s.Set("app", "0", deployment{})
			synctest.Wait()
		}
		settle()
		require.Equal(t, []int{1, 1}, seen.sizes[first:], "of the other nine the newest observation counts")
		for key := range 2 {
			s.Set("app", fmt.Sprint(key), deployment{Image: "last"})
			synctest.Wait()
		}
		stop()
		require.Len(t, seen.sizes, first+4, "the last reports are sent at the end")
	})
}

// A report is sent until it is taken. If its answer was lost it counts once.
func TestReportsAreSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		log, seen, stop := reporting(t, s, 503, 500, 0, 429, 401)
		settle()
		stop()
		require.Equal(t, []uint64{1, 1, 1, 1, 1, 1}, seen.seqs)
		for n := range 5 {
			require.LessOrEqual(t, seen.at[n+1].Sub(seen.at[n]), 200*time.Millisecond<<n)
		}
		require.Equal(t, 1, strings.Count(log.String(), "report_failed"))
		require.Len(t, s.Observations(), 1)
	})
}

// Reports are an extra: without the right to them the controller goes on.
func TestReportsThatAreRefusedAreOff(t *testing.T) {
	t.Parallel()
	for _, code := range []int{403, 404, 405} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, s *streamtest.Server) {
				fill(s, 3)
				log, seen, stop := reporting(t, s, code)
				settle()
				s.Set("app", "1", deployment{Image: "v2"})
				settle()
				seen.mu.Lock()
				require.Len(t, seen.seqs, 1)
				seen.mu.Unlock()
				time.Sleep(10 * time.Minute)
				settle()
				require.Len(t, s.Observations(), 3, "the server takes reports again")
				stop()
				require.Equal(t, 1, strings.Count(log.String(), "reports_off"))
				require.Equal(t, 1, strings.Count(log.String(), "reports_on"))
			})
		})
	}
}

// One observation that the server refuses costs no other one.
func TestReportThatIsWrongIsHalvedAndDropped(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		fill(s, 8)
		s.HoldAt("app")
		log, seen, stop := reporting(t, s)
		synctest.Wait()
		seen.mu.Lock()
		seen.largest, seen.wrong = 4, `"key":"3"`
		seen.mu.Unlock()
		s.Release()
		settle()
		stop()
		require.Equal(t, 1, strings.Count(log.String(), "report_dropped"))
		require.Len(t, s.Observations(), 7)
	})
}

// The end of a controller waits 5 s for its last reports.
func TestLastReportsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, s *streamtest.Server) {
		s.Set("app", "1", deployment{})
		s.RefuseReports(503)
		_, _, stop := reporting(t, s)
		settle()
		began := time.Now()
		stop()
		require.InDelta(t, 5*time.Second, time.Since(began), float64(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.WaitObserved(ctx, "app", "1", client.StateApplied)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// A server that takes nothing of a report, as another client has taken over, shows in the log.
func TestReportThatIsIgnoredIsLogged(t *testing.T) {
	t.Parallel()
	for ignored, want := range map[int]int{0: 0, 1: 1} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Reconciler-Installation", "here")
			_, _ = fmt.Fprintf(w, `{"accepted":%d,"ignored":%d}`, 1-ignored, ignored)
		}))
		t.Cleanup(server.Close)
		var log bytes.Buffer
		c, err := client.New(server.URL, client.HTTPClient(server.Client()), client.Logger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, err)
		report := client.Report{Observations: []client.Observation{{Resource: "app", Key: "1", Version: 1, State: client.StateApplied}}}
		require.NoError(t, c.Report(t.Context(), "eu", report))
		require.Equal(t, want, strings.Count(log.String(), "report_ignored"), ignored)
	}
}

// The version of a complete report is on its first line.
func TestCompleteReportNamesItsVersion(t *testing.T) {
	t.Parallel()
	first := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		line, _ := bufio.NewReader(r.Body).ReadString('\n')
		first <- line
		w.Header().Set("Reconciler-Installation", "here")
		_, _ = fmt.Fprint(w, `{"accepted":0,"ignored":0}`)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL, client.HTTPClient(server.Client()))
	require.NoError(t, err)
	require.NoError(t, c.Report(t.Context(), "eu", client.Report{Complete: true, Version: 4711}))
	require.Regexp(t, `^{"session":"[0-9a-f]{32}","seq":1,"complete":true,"version":4711}\n$`, <-first)
}
