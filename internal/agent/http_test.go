package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
)

// ask makes a request as one that comes from an address.
func (r *running) ask(method, path, host, from string) (status int, body string) {
	req := httptest.NewRequest(method, path, http.NoBody)
	req.Host, req.RemoteAddr = host, from
	w := httptest.NewRecorder()
	r.handler().ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func TestApprovalsAreTakenFromTheSameHostOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.lines = "  guard: {max_deletes: 2}\n"
		b.fill(5)
		r := b.start(t)
		after(time.Second)
		for _, key := range []string{"000", "001", "002"} {
			b.Lose("app", key)
		}
		b.Reset("restored")
		after(time.Second)
		require.Equal(t, 3, r.target().Held)
		for _, from := range [][2]string{{"10.0.0.7:7434", "10.0.0.1:999"}, {"127.0.0.1:7434", "10.0.0.1:999"}, {"evil.example.org", "127.0.0.1:999"}} {
			status, body := r.ask(http.MethodPost, "/approve?target=eu", from[0], from[1])
			require.Equal(t, http.StatusForbidden, status)
			require.Equal(t, "approvals are taken on the loopback interface only: run reconciler agent approve on the agent's host, or "+
				"SELECT reconciler.approve(...) in the database\n", body)
		}
		status, _ := r.ask(http.MethodGet, "/approve?target=eu", "localhost", "[::1]:999")
		require.Equal(t, http.StatusMethodNotAllowed, status)
		status, body := r.ask(http.MethodPost, "/approve?target=us", "localhost", "[::1]:999")
		require.Equal(t, http.StatusNotFound, status)
		require.Equal(t, "no target is named \"us\" here; there are eu\n", body)
		require.Equal(t, 3, r.target().Held)
		status, body = r.ask(http.MethodPost, "/approve?target=eu", "localhost:7434", "127.0.0.1:999")
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, `{"target": "eu", "approved": 3}`, body)
		after(time.Second)
		require.Equal(t, `app/003={"n":3} app/004={"n":4}`, b.far.has())
	})
}

func TestReadyzNamesWhatKeepsATargetFromWorking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Set("app", "web", spec(1))
		b.HoldAt("app")
		r := b.start(t)
		after(20 * time.Second)
		status, body := r.ask(http.MethodGet, "/readyz", "localhost", "10.0.0.1:999")
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "target eu: the objects are not complete: queue\n", body)
		b.Release()
		after(time.Second)
		status, body = r.ask(http.MethodGet, "/readyz", "localhost", "10.0.0.1:999")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "ok\n", body)
		b.Down()
		after(time.Minute)
		status, _ = r.ask(http.MethodGet, "/readyz", "localhost", "10.0.0.1:999")
		require.Equal(t, http.StatusOK, status, "work goes on without the server")
		status, body = r.ask(http.MethodGet, "/healthz", "localhost", "10.0.0.1:999")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, "ok\n", body)
	})
}

func TestStatusIsJSON(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(10 * time.Second)
		_, body := r.ask(http.MethodGet, "/status", "localhost", "10.0.0.1:999")
		var status Status
		require.NoError(t, json.Unmarshal([]byte(body), &status))
		one := status.Targets[0]
		require.False(t, one.LastFrame.IsZero())
		require.False(t, one.LastReport.IsZero())
		require.False(t, one.LastSync.IsZero())
		one.LastFrame, one.LastReport, one.LastSync = time.Time{}, time.Time{}, time.Time{}
		require.Equal(t, Target{Target: "eu", State: StateOK, Driver: "far", Objects: 1, Revision: 1}, one)
		require.Equal(t, "host-7", status.Name)
	})
}

var seriesLine = regexp.MustCompile(`^# TYPE (reconciler_agent_\S+) (\S+)$`)

// Every series is documented, and is there from the start.
func TestMetricsAreAsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(reconciler_agent_\\S+)` \\| (\\S+) \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, m[1]+" "+m[2])
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Set("app", "web", spec(1))
		r := b.start(t)
		series := func() (all []string, body string) {
			_, body = r.ask(http.MethodGet, "/metrics", "localhost", "10.0.0.1:999")
			for line := range strings.Lines(body) {
				if m := seriesLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
					all = append(all, m[1]+" "+m[2])
				}
			}
			slices.Sort(all)
			return all, body
		}
		before, _ := series()
		require.Equal(t, documented, before)
		after(10 * time.Second)
		b.far.change(func() { b.far.objects[client.Ref{Resource: "app", Key: "web"}] = "{}" })
		r.targets[0].session.controller.List()
		after(10 * time.Second)
		now, body := series()
		require.Equal(t, before, now)
		for _, line := range []string{
			`reconciler_agent_calls_total{action="apply",target="eu",verdict="done"} 2`,
			`reconciler_agent_drift_total{kind="different",target="eu"} 1`,
			`reconciler_agent_drift_total{kind="missing",target="eu"} 0`,
			`reconciler_agent_objects{target="eu"} 1`,
			`reconciler_agent_ready{target="eu"} 1`,
			`reconciler_agent_guard_held{target="eu"} 0`,
			`reconciler_agent_reports_total{result="failed",target="eu"} 0`,
		} {
			require.Contains(t, body, line+"\n")
		}
		problems, err := promlint.New(strings.NewReader(body)).Lint()
		require.NoError(t, err)
		require.Empty(t, problems)
	})
}
