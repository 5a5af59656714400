// Package metrics holds every series that the binary exports, on a registry that the caller injects.
// Labels are bounded: target and driver names from the config, never a key.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/pgreconciler/reconciler/internal/budget"
)

// Metrics are the series. All times are in seconds.
type Metrics struct {
	Leader       prometheus.Gauge
	Awake        prometheus.Gauge
	Ticks        prometheus.Counter
	Wakeups      *prometheus.CounterVec // by: notify, command, poll
	Revision     prometheus.Gauge
	Listening    prometheus.Gauge
	OutboxEvents prometheus.Counter
	Expanded     prometheus.Counter
	Retained     prometheus.Counter
	Applies      *prometheus.GaugeVec   // state: of those that have not ended
	AppliesEnded *prometheus.CounterVec // state: completed, failed, cancelled
	LoopFailing  *prometheus.GaugeVec   // loop, target
	LoopFailures *prometheus.CounterVec // loop, target

	Calls        *prometheus.CounterVec   // target, action, verdict
	CallSeconds  *prometheus.HistogramVec // target, action
	Unchanged    *prometheus.CounterVec   // target
	Lag          *prometheus.HistogramVec // target: from tick to applied
	Queued       *prometheus.GaugeVec     // target, lane
	InFlight     *prometheus.GaugeVec     // target
	Owned        *prometheus.GaugeVec     // target
	CircuitOpen  *prometheus.GaugeVec     // target
	GuardHeld    *prometheus.GaugeVec     // target
	Contested    *prometheus.GaugeVec     // target
	Cursor       *prometheus.GaugeVec     // target
	LedgerWrites *prometheus.CounterVec   // target
	ApplyTasks   *prometheus.CounterVec   // target, state

	Syncs       *prometheus.CounterVec   // target, outcome
	SyncSeconds *prometheus.HistogramVec // target
	SyncRows    *prometheus.CounterVec   // target
	Drift       *prometheus.CounterVec   // target, kind
	WatchEvents *prometheus.CounterVec   // target
	LastSync    *prometheus.GaugeVec     // target: unix time of the last complete sync

	StreamWatchers  *prometheus.GaugeVec   // target
	StreamBehind    *prometheus.GaugeVec   // target
	StreamVersion   *prometheus.GaugeVec   // target
	StreamFrames    *prometheus.CounterVec // target
	StreamBytes     *prometheus.CounterVec // target
	StreamSnapshots *prometheus.CounterVec // target
	StreamResets    *prometheus.CounterVec // target, reason
	StreamStalled   *prometheus.CounterVec // target
	Reports         *prometheus.CounterVec // target
	ReportsRefused  *prometheus.CounterVec // reason: see ReportRefusals
	Observations    *prometheus.CounterVec // target, state: see ObservedStates
	Ignored         *prometheus.CounterVec // target
	LastReport      *prometheus.GaugeVec   // target: unix time of the last accepted report
}

// New registers all series. Those that are not about a target start at zero; Target does the same for a target's.
func New(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Namespace: "reconciler", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "reconciler", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "reconciler", Name: name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Namespace: "reconciler", Name: name, Help: help}, labels)
	}
	times := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "reconciler", Name: name, Help: help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels)
	}
	m := &Metrics{
		Leader:       gauge("leader", "1 while this process makes revisions."),
		Awake:        gauge("awake", "1 while the leader polls and writers do not notify."),
		Ticks:        counter("ticks_total", "Revisions made by this process."),
		Wakeups:      counters("wakeups_total", "What made the leader look: notify, command or poll.", "by"),
		Revision:     gauge("revision", "Newest revision known to this process."),
		Listening:    gauge("listening", "1 while LISTEN is known to work."),
		OutboxEvents: counter("outbox_events_total", "Outbox rows read."),
		Expanded:     counter("expanded_total", "Objects marked because a row of a base table changed."),
		Retained:     counter("outbox_parts_emptied_total", "Parts of the outbox that retention emptied."),
		Applies:      gauges("applies", "Applies that have not ended; 0 in processes that do not lead.", "state"),
		AppliesEnded: counters("applies_ended_total", "Ends of applies that this process saw while it led; one that is tried again may end again.", "state"),
		LoopFailing:  gauges("loop_failing", "1 while a loop of this process fails; target is empty for those that work for all.", "loop", "target"),
		LoopFailures: counters("loop_failures_total", "Failed turns of loops of this process.", "loop", "target"),

		Calls:        counters("calls_total", "Driver calls by outcome.", "target", "action", "verdict"),
		CallSeconds:  times("call_seconds", "Duration of driver calls.", "target", "action"),
		Unchanged:    counters("unchanged_total", "Objects looked at that were in the target already.", "target"),
		Lag:          times("lag_seconds", "From the revision of a change to its result.", "target"),
		Queued:       gauges("queued", "Objects waiting in memory.", "target", "lane"),
		InFlight:     gauges("in_flight", "Objects read and not yet settled.", "target"),
		Owned:        gauges("owned", "1 while this process owns the target.", "target"),
		CircuitOpen:  gauges("circuit_open", "1 while the target is taken to be down.", "target"),
		GuardHeld:    gauges("guard_held", "Deletes that wait for approve().", "target"),
		Contested:    gauges("contested", "Objects that are not repaired for a while because others change them again each time.", "target"),
		Cursor:       gauges("cursor_revision", "Revision up to which changes are recorded.", "target"),
		LedgerWrites: counters("ledger_writes_total", "Ledger rows written or removed.", "target"),
		ApplyTasks:   counters("apply_tasks_total", "Objects of applies by what came of them, as this process recorded it.", "target", "state"),

		Syncs:       counters("syncs_total", "Syncs by outcome.", "target", "outcome"),
		SyncSeconds: times("sync_seconds", "Duration of complete syncs.", "target"),
		SyncRows:    counters("sync_rows_total", "Running rows read by syncs.", "target"),
		Drift:       counters("drift_total", "Objects that a sync found missing, different or orphaned in the target.", "target", "kind"),
		WatchEvents: counters("watch_events_total", "Objects looked at again because the target named them as changed.", "target"),
		LastSync:    gauges("last_sync_timestamp_seconds", "When the last complete sync ended.", "target"),

		StreamWatchers:  gauges("stream_watchers", "Watchers of the stream at this process.", "target"),
		StreamBehind:    gauges("stream_furthest_behind", "Versions that the slowest watcher at this process has still to read.", "target"),
		StreamVersion:   gauges("stream_version", "Newest version of the stream that this process has read.", "target"),
		StreamFrames:    counters("stream_frames_total", "Frames sent to watchers.", "target"),
		StreamBytes:     counters("stream_bytes_total", "Bytes of frames sent to watchers, before compression.", "target"),
		StreamSnapshots: counters("stream_snapshots_total", "Snapshots sent to their ends.", "target"),
		StreamStalled:   counters("stream_stalled_total", "Watchers that were disconnected because they read nothing while others waited for memory.", "target"),
		StreamResets:    counters("stream_resets_total", "Watchers that had to begin again, by reason.", "target", "reason"),
		Reports:         counters("stream_reports_total", "Accepted reports of clients.", "target"),
		ReportsRefused:  counters("stream_reports_refused_total", "Refused reports of clients, by reason.", "reason"),
		Observations:    counters("stream_observations_total", "Observations in accepted reports, by state.", "target", "state"),
		Ignored:         counters("stream_observations_ignored_total", "Observations in accepted reports that changed nothing: something newer was known, or the object is not published.", "target"),
		LastReport:      gauges("stream_last_report_timestamp_seconds", "When this process accepted a report last; 0: not since it started.", "target"),
	}
	for _, reason := range ReportRefusals {
		m.ReportsRefused.WithLabelValues(reason)
	}
	for _, by := range []string{"notify", "command", "poll"} {
		m.Wakeups.WithLabelValues(by)
	}
	m.SetApplies(nil)
	for _, state := range ApplyEnds {
		m.AppliesEnded.WithLabelValues(state)
	}
	return m
}

// ReportRefusals are the reasons why a report of a client is refused; ObservedStates are the states that one gives to objects.
var (
	ReportRefusals = []string{"body", "busy", "database", "forbidden", "size", "target", "token"}
	ObservedStates = []string{"absent", "applied", "failed", "progressing"}
)

// The states of an apply: those that it is in until it ends, and those that it ends in.
var (
	ApplyStates = []string{"pending", "running", "degraded", "paused", "stopping", "stopped"}
	ApplyEnds   = []string{"completed", "superseded", "failed", "cancelled"}
)

// SetApplies says how many applies are in each state; 0 in those that are not named.
func (m *Metrics) SetApplies(byState map[string]int64) {
	for _, state := range ApplyStates {
		m.Applies.WithLabelValues(state).Set(float64(byState[state]))
	}
}

// Budget registers series that show how much of a budget is used.
func Budget(reg prometheus.Registerer, b *budget.Budget) {
	for _, p := range b.Parts() {
		gauge := func(name, help string, value func() float64) {
			promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
				Namespace: "reconciler", Name: name, Help: help, ConstLabels: prometheus.Labels{"part": p.Name},
			}, value)
		}
		gauge("memory_used_bytes", "Bytes of objects in memory, by part: frames kept for all watchers, pages that watchers have not yet taken, calls that targets have read or begun.",
			func() float64 { return float64(p.Used()) })
		gauge("memory_limit_bytes", "Most bytes of objects in memory, by part: see memory_limit.",
			func() float64 { return float64(p.Most) })
	}
}

// Loop starts the series of a loop at zero.
func (m *Metrics) Loop(name, target string) {
	m.LoopFailing.WithLabelValues(name, target)
	m.LoopFailures.WithLabelValues(name, target)
}

// Stream starts the series of a stream at zero.
func (m *Metrics) Stream(name string) {
	for _, vec := range []*prometheus.GaugeVec{m.StreamWatchers, m.StreamBehind, m.StreamVersion, m.LastReport} {
		vec.WithLabelValues(name)
	}
	for _, vec := range []*prometheus.CounterVec{m.StreamFrames, m.StreamBytes, m.StreamSnapshots, m.StreamStalled, m.Reports, m.Ignored} {
		vec.WithLabelValues(name)
	}
	for _, state := range ObservedStates {
		m.Observations.WithLabelValues(name, state)
	}
	for _, reason := range []string{"expired", "restored", "scope", "unknown"} {
		m.StreamResets.WithLabelValues(name, reason)
	}
}

// Target starts the series of a target at zero, so that a rate over them sees the first event.
func (m *Metrics) Target(name string) {
	for _, action := range []string{"apply", "delete"} {
		for _, verdict := range []string{"done", "backoff", "retry_after", "terminal", "unapproved", "unreachable", "waiting"} {
			m.Calls.WithLabelValues(name, action, verdict)
		}
		m.CallSeconds.WithLabelValues(name, action)
	}
	for _, outcome := range []string{"complete", "failed"} {
		m.Syncs.WithLabelValues(name, outcome)
	}
	for _, kind := range []string{"missing", "different", "orphan", "stale"} {
		m.Drift.WithLabelValues(name, kind)
	}
	for _, vec := range []*prometheus.CounterVec{m.Unchanged, m.LedgerWrites, m.SyncRows, m.WatchEvents} {
		vec.WithLabelValues(name)
	}
	for _, vec := range []*prometheus.GaugeVec{m.InFlight, m.Owned, m.CircuitOpen, m.GuardHeld, m.Contested, m.Cursor, m.LastSync} {
		vec.WithLabelValues(name)
	}
	for _, state := range []string{"completed", "failed"} {
		m.ApplyTasks.WithLabelValues(name, state)
	}
	m.Queued.WithLabelValues(name, "live")
	m.Queued.WithLabelValues(name, "sync")
	m.Lag.WithLabelValues(name)
	m.SyncSeconds.WithLabelValues(name)
}
