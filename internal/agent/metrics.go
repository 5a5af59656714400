package agent

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	namespace = "reconciler"
	subsystem = "agent"
)

// metrics are the series that are counted. Those that show a state are read when they are asked for.
type metrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	drift   *prometheus.CounterVec
	watched *prometheus.CounterVec
	reports *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	return &metrics{
		calls: counters("calls_total", "Driver calls by outcome.", "target", "action", "verdict"),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "call_seconds", Help: "Duration of driver calls.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 5, 10, 30, 60},
		}, []string{"target", "action"}),
		drift:   counters("drift_total", "Objects that a sync found missing or different.", "target", "kind"),
		watched: counters("watch_events_total", "Objects looked at again because the target named them as changed.", "target"),
		reports: counters("reports_total", "Reports by result: sent or failed.", "target", "result"),
	}
}

// watch adds the series of a target.
func (m *metrics) watch(reg prometheus.Registerer, t *target) {
	for _, action := range []driver.Action{driver.ActionApply, driver.ActionDelete} {
		m.calls.WithLabelValues(t.cfg.Name, string(action), driver.VerdictDone.String())
		m.seconds.WithLabelValues(t.cfg.Name, string(action))
	}
	for _, kind := range []string{"missing", "different"} {
		m.drift.WithLabelValues(t.cfg.Name, kind)
	}
	m.watched.WithLabelValues(t.cfg.Name)
	for _, result := range []string{"sent", "failed"} {
		m.reports.WithLabelValues(t.cfg.Name, result)
	}
	gauge := func(name, help string, value func(Target) float64) {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, ConstLabels: prometheus.Labels{"target": t.cfg.Name},
		}, func() float64 { return value(t.status()) })
	}
	gauge("objects", "Objects that the stream wants.", func(s Target) float64 { return float64(s.Objects) })
	gauge("pending", "Objects that wait for a call, or are called for.", func(s Target) float64 { return float64(s.Pending) })
	gauge("failing", "Objects whose last call failed.", func(s Target) float64 { return float64(s.Failing) })
	gauge("guard_held", "Deletes that wait for approval.", func(s Target) float64 { return float64(s.Held) })
	gauge("contested", "Objects that are not repaired for a while because others change them again each time.",
		func(Target) float64 { return float64(driver.ContestedBy(t.drv)) })
	gauge("suspended", "1 while the agent makes no calls: the target is down, asks for none, or may still work on those of a killed agent.",
		func(s Target) float64 { return truth(s.State == StateSuspended) })
	gauge("refused", "1 while the server refuses to serve the target, or has another stream than the state.",
		func(s Target) float64 { return truth(s.State == StateRefused || s.State == StateStopped) })
	gauge("ready", "1 while the target works as it should, as /readyz shows.", func(s Target) float64 { return truth(s.ready == "") })
	gauge("last_frame_timestamp_seconds", "When the server sent something last; 0: not since the start.",
		func(s Target) float64 { return unix(s.LastFrame) })
	gauge("last_sync_timestamp_seconds", "When the far side was listed last; 0: not since the start.",
		func(s Target) float64 { return unix(s.LastSync) })
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func unix(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return float64(at.Unix())
}

// counted counts the reports among the requests of a target.
type counted struct {
	http.RoundTripper

	target *target
}

// RoundTrip makes a request.
func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if r.Method != http.MethodPost {
		return resp, err
	}
	result := "failed"
	if err == nil && resp.StatusCode == http.StatusOK {
		result = "sent"
		c.target.mu.Lock()
		c.target.report = time.Now()
		c.target.mu.Unlock()
	}
	c.target.metrics.reports.WithLabelValues(c.target.cfg.Name, result).Inc()
	return resp, err
}
