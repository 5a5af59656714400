package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// metrics asks the daemon for its series.
func (d *daemon) metrics() map[string]*dto.MetricFamily {
	d.t.Helper()
	var body string
	eventually(d.t, patience, func() (err error) {
		var status int
		if status, body, err = d.get("/metrics"); err == nil && status != 200 {
			err = errors.New(body)
		}
		return err
	}, "metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	require.NoError(d.t, err, body)
	return families
}

// metric returns the value of a counter or gauge, of the first series that has these labels (pairs of name and value).
func (d *daemon) metric(name string, labels ...string) float64 {
	d.t.Helper()
	family := d.metrics()[name]
	require.NotNil(d.t, family, "there is no series %s", name)
	for _, m := range family.GetMetric() {
		if hasLabels(m, labels) {
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.FailNow(d.t, "there is no such series", "%s %v", name, labels)
	return 0
}

func hasLabels(m *dto.Metric, labels []string) bool {
	have := map[string]string{}
	for _, pair := range m.GetLabel() {
		have[pair.GetName()] = pair.GetValue()
	}
	for i := 0; i < len(labels); i += 2 {
		if have[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// series describes what the daemon exports, but for the series of Go and of the process, as rows of a table.
func (d *daemon) series() string {
	d.t.Helper()
	var rows []string
	for name, family := range d.metrics() {
		if !strings.HasPrefix(name, "reconciler_") {
			continue
		}
		values := map[string]map[string]bool{}
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				if values[pair.GetName()] == nil {
					values[pair.GetName()] = map[string]bool{}
				}
				values[pair.GetName()][pair.GetValue()] = true
			}
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, strings.ToLower(family.GetType().String()), labelText(values), family.GetHelp()))
	}
	slices.Sort(rows)
	return strings.Join(rows, "")
}

// labelText lists labels with their values; those of targets are the user's.
func labelText(values map[string]map[string]bool) string {
	var labels []string
	for name, of := range values {
		text := "`" + name + "`"
		if name != "target" {
			text += " (" + strings.Join(slices.Sorted(maps.Keys(of)), ", ") + ")"
		}
		labels = append(labels, text)
	}
	slices.Sort(labels)
	return strings.Join(labels, ", ")
}

// listens waits until the daemon knows that it hears notifications.
func (d *daemon) listens() {
	d.t.Helper()
	eventually(d.t, patience, func() error {
		if d.metric("reconciler_listening") != 1 {
			return errors.New("it is not known whether LISTEN works")
		}
		return nil
	}, "it listens")
}

const seriesPage = "../../docs/metrics.md"

// Every series is documented, is there from the start, and is made as Prometheus' own linter likes it.
func TestMetricsAreAsDocumented(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(fleet)
	w.configure([]object{w.fileTarget("eu"), {"name": "followed", "driver": "stream"}}, object{"streams": object{"listen": "127.0.0.1:0"}})
	d := w.start()
	w.wait()             // the first sync calls what it finds, whoever else does
	series := d.series() // no call has been made yet, and all of them are there
	page, err := os.ReadFile(seriesPage)
	require.NoError(t, err)
	const begin, end = "|---|---|---|---|\n", "\n\n"
	_, table, found := strings.Cut(string(page), begin)
	require.True(t, found, seriesPage)
	table, _, found = strings.Cut(table, end)
	require.True(t, found, seriesPage)
	require.Equal(t, series, table+"\n", "the table of %s", seriesPage)

	_, body, err := d.get("/metrics")
	require.NoError(t, err)
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)

	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 3) AS i`)
	w.wait()
	w.exec(`UPDATE apps SET version = 2 WHERE id = 1; DELETE FROM apps WHERE id = 2`)
	w.wait()
	d.listens()
	have := map[string]float64{}
	for _, name := range []string{"leader", "listening", "owned", "circuit_open", "guard_held"} {
		have[name] = d.metric("reconciler_" + name)
	}
	for _, verdict := range []string{"done", "backoff"} {
		have["apply "+verdict] = d.metric("reconciler_calls_total", "target", "eu", "action", "apply", "verdict", verdict)
		have["delete "+verdict] = d.metric("reconciler_calls_total", "target", "eu", "action", "delete", "verdict", verdict)
	}
	require.Equal(t, map[string]float64{
		"leader": 1, "listening": 1, "owned": 1, "circuit_open": 0, "guard_held": 0, "apply done": 4, "delete done": 1, "apply backoff": 0, "delete backoff": 0,
	}, have)
	// Some are counted right after what wait() looks at was committed, and the leader looks by itself when nobody has called.
	eventually(t, patience, func() error {
		for _, name := range []string{"ticks_total", "outbox_events_total", "revision", "cursor_revision", "ledger_writes_total", "last_sync_timestamp_seconds", "syncs_total"} {
			if d.metric("reconciler_"+name) <= 0 {
				return fmt.Errorf("%s is not positive", name)
			}
		}
		for _, name := range []string{"call_seconds", "lag_seconds", "sync_seconds"} {
			if d.metrics()["reconciler_"+name].GetMetric()[0].GetHistogram().GetSampleCount() == 0 {
				return fmt.Errorf("%s has counted nothing", name)
			}
		}
		if d.metric("reconciler_wakeups_total", "by", "poll") == 0 {
			return errors.New("no wake-up by a poll")
		}
		return nil
	}, "what has happened is counted")
	require.Equal(t, series, d.series(), "no series and no label came with the work")
}

// /readyz follows the first sync, /healthz the loops.
func TestProbesFollowTheFirstSync(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(fleet)
	w.exec(`INSERT INTO apps (id, region) VALUES (1, 'eu')`)
	w.configure([]object{w.journalTarget("eu", 0, object{"timeout": "1m"})})
	gate := w.path("eu/gate")
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	d := w.start()
	w.begun("eu", 1)
	d.answers("/readyz", 503, "target eu: the first sync is not complete\n", patience)
	d.answers("/healthz", 200, "ok\n", patience)
	require.NoError(t, os.Remove(gate))
	d.answers("/readyz", 200, "ok\n", patience)
	status, _, err := d.get("/nowhere")
	require.NoError(t, err)
	require.Equal(t, 404, status)
}
