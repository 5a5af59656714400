package loop

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pace"
)

var (
	// Lasting is how long a loop fails before the process is not ready and psql shows it: a lost connection is mended sooner.
	Lasting = pace.Of(5 * time.Second)
	// silentAfter is when one failure is enough because nothing has succeeded since. Some loops have their next turn after
	// 15 s; until then nobody knows.
	silentAfter = pace.Of(20 * time.Second)
	// steadyAfter is how long the owner of a target runs before what failed in the run before counts as mended.
	steadyAfter = pace.Of(30 * time.Second)
)

const (
	// stuckAfter is when a turn that has not come back counts as failing. A busy machine needs seconds for some turns, so
	// test builds wait as long.
	stuckAfter = 20 * time.Second
	// logAgainMin and logAgainMax are the first and the longest pause before the log says again that a loop fails.
	logAgainMin = 10 * time.Second
	logAgainMax = 10 * time.Minute
	// checkEvery is how often turns that do not come back are looked for.
	checkEvery = time.Second
)

// Monitor knows every loop of a process. Nil knows none.
type Monitor struct {
	logger  *slog.Logger
	metrics *metrics.Metrics
	start   time.Time

	mu    sync.Mutex // guards what follows, and the state of each loop
	loops map[key]*Loop
}

type key struct {
	name   Name
	target string
}

// New returns a Monitor with the loops of a process and of the targets of its config. Their series begin at zero.
func New(logger *slog.Logger, m *metrics.Metrics, targets ...string) *Monitor {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	monitor := &Monitor{logger: logger, metrics: m, start: time.Now(), loops: map[key]*Loop{}}
	for _, name := range slices.Concat(ofLeader, ofProcess) {
		monitor.Loop(name, "")
	}
	for _, target := range targets {
		for _, name := range ofTarget {
			monitor.Loop(name, target)
		}
	}
	return monitor
}

// Loop returns the entry of a loop, of a target or (with "") of the process.
func (m *Monitor) Loop(name Name, target string) *Loop {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{name, target}
	if m.loops[k] == nil {
		m.loops[k] = &Loop{m: m, name: name, target: target}
		m.metrics.Loop(string(name), target)
	}
	return m.loops[k]
}

// RestTarget forgets the failures of a target's loops: they do not run in this process any more.
func (m *Monitor) RestTarget(target string) { m.rest(ofTarget, target) }

// RestLeader forgets the failures of the leader's duties: this process does not lead any more.
func (m *Monitor) RestLeader() { m.rest(ofLeader, "") }

// Steady tells that the owner of a target has been running for a time: parts whose last failure is older, and some more, have
// had nothing to do since.
func (m *Monitor) Steady(target string, ran time.Duration) {
	if m == nil || target == "" || ran < steadyAfter {
		return
	}
	var steady []*Loop
	m.mu.Lock()
	for _, name := range ofTarget {
		if l := m.loops[key{name, target}]; l != nil && l.state.failures > 0 && !l.state.stuck && time.Since(l.state.last) >= min(ran, steadyAfter) {
			steady = append(steady, l)
		}
	}
	m.mu.Unlock()
	for _, l := range steady {
		m.recovered(l)
	}
}

func (m *Monitor) rest(names []Name, target string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if l := m.loops[key{name, target}]; l != nil {
			l.begun.Store(0)
			m.clearLocked(l)
		}
	}
}

func (m *Monitor) clearLocked(l *Loop) {
	l.state = state{}
	l.failing.Store(false)
	m.metrics.LoopFailing.WithLabelValues(string(l.name), l.target).Set(0)
}

func (m *Monitor) recovered(l *Loop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := l.state; s.failures > 0 {
		m.logger.Info("loop_recovered", "loop", l.name, "target", l.target, "failures", s.failures, "failing_for", time.Since(s.since).Round(time.Millisecond))
	}
	m.clearLocked(l)
}

func (m *Monitor) failed(l *Loop, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	m.failedLocked(l, now, now, Text(database.Explain(err)))
	l.state.stuck = false
}

func (m *Monitor) failedLocked(l *Loop, since, now time.Time, text string) {
	s := &l.state
	s.failures++
	s.last, s.text = now, text
	m.metrics.LoopFailures.WithLabelValues(string(l.name), l.target).Inc()
	if s.failures > 1 {
		return
	}
	s.since = since
	s.logPause = logAgainMin
	s.logAt = now.Add(s.logPause)
	l.failing.Store(true)
	m.metrics.LoopFailing.WithLabelValues(string(l.name), l.target).Set(1)
	if !logged[l.name] {
		m.logger.Warn("loop_failing", "loop", l.name, "target", l.target, "error", text)
	}
}

// Run notices turns that do not come back, and logs what goes on failing, with growing pauses, until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.check(time.Now())
		}
	}
}

func (m *Monitor) check(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.loops {
		s := &l.state
		if took := l.turn(); took > stuckAfter && !s.stuck {
			m.failedLocked(l, now.Add(-took), now, fmt.Sprintf("no answer for %s", took.Round(time.Second)))
			s.stuck = true
		}
		if s.failures > 0 && !now.Before(s.logAt) {
			m.logger.Warn("loop_still_failing", "loop", l.name, "target", l.target, "error", s.text, "failures", s.failures, "failing_for", now.Sub(s.since).Round(time.Second))
			s.logPause = min(2*s.logPause, logAgainMax)
			s.logAt = now.Add(s.logPause)
		}
	}
}

// Failure is a loop that fails.
type Failure struct {
	Loop     Name
	Target   string        // "": a loop of the process
	For      time.Duration // since its first failure
	Since    time.Duration // since its last one
	Failures int64         // in a row
	Text     string        // the last error, without secrets
}

func (f Failure) String() string {
	what := "loop " + string(f.Loop)
	if f.Target != "" {
		what += " of target " + f.Target
	}
	return fmt.Sprintf("%s has been failing for %s: %s", what, f.For.Round(time.Second), f.Text)
}

// Failing returns the loops that have been failing for longer than a time, in order: their failures span that time, or the
// last one is old and nothing has succeeded since.
func (m *Monitor) Failing(longer time.Duration) []Failure {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	var found []Failure
	for _, l := range m.loops {
		if s := l.state; s.failures > 0 && (s.stuck || s.last.Sub(s.since) >= longer || now.Sub(s.last) >= max(longer, silentAfter)) {
			found = append(found, Failure{Loop: l.name, Target: l.target, For: now.Sub(s.since), Since: now.Sub(s.last), Failures: s.failures, Text: s.text})
		}
	}
	slices.SortFunc(found, func(a, b Failure) int { return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Loop, b.Loop)) })
	return found
}
