package loop_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/metrics"
	"github.com/pgreconciler/reconciler/internal/pace"
)

type world struct {
	*loop.Monitor
	metrics *metrics.Metrics
	log     *bytes.Buffer
}

func setup() *world {
	w := &world{metrics: metrics.New(prometheus.NewRegistry()), log: &bytes.Buffer{}}
	text := slog.NewTextHandler(w.log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	w.Monitor = loop.New(slog.New(text), w.metrics, "eu")
	return w
}

func (w *world) failing(longer time.Duration) (texts []string) {
	for _, f := range w.Failing(longer) {
		texts = append(texts, f.String())
	}
	return texts
}

func value(metric prometheus.Metric) float64 {
	var m dto.Metric
	if err := metric.Write(&m); err != nil {
		panic(err)
	}
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

func (w *world) gauge(name loop.Name, target string) float64 {
	return value(w.metrics.LoopFailing.WithLabelValues(string(name), target))
}

func (w *world) count(name loop.Name, target string) float64 {
	return value(w.metrics.LoopFailures.WithLabelValues(string(name), target))
}

// What docs/metrics.md and docs/psql.md promise.
func TestDefaults(t *testing.T) {
	t.Parallel()
	require.Equal(t, pace.Of(5*time.Second), loop.Lasting)
}

func TestFailureIsToldUntilItEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup()
		read := w.Loop(loop.Read, "eu")
		read.Failed(errors.New("no such table"))
		require.Empty(t, w.failing(loop.Lasting))
		require.Equal(t, 1.0, w.gauge(loop.Read, "eu"))
		time.Sleep(6 * time.Second)
		read.Failed(errors.New("no such column"))
		require.Equal(t, []string{"loop read of target eu has been failing for 6s: no such column"}, w.failing(loop.Lasting))
		require.Equal(t, 2.0, w.count(loop.Read, "eu"))
		read.Succeeded()
		read.Succeeded()
		require.Empty(t, w.failing(0))
		require.Zero(t, w.gauge(loop.Read, "eu"))
		require.Equal(t, `level=WARN msg=loop_failing loop=read target=eu error="no such table"
level=INFO msg=loop_recovered loop=read target=eu failures=2 failing_for=6s
`, w.log.String())
	})
}

// One failure of a loop whose next turn is far away is no lasting one, until that turn should have come.
func TestOneFailureLastsWhenNothingSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup()
		w.Loop(loop.Steer, "eu").Failed(errors.New("cut off"))
		time.Sleep(pace.Of(19 * time.Second))
		require.Empty(t, w.failing(loop.Lasting))
		time.Sleep(pace.Of(time.Second))
		require.Equal(t, []string{fmt.Sprintf("loop steer of target eu has been failing for %s: cut off", pace.Of(20*time.Second))}, w.failing(loop.Lasting))
	})
}

func TestLogPausesGrow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup()
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(t.Context())
		}()
		tick := w.Loop(loop.Tick, "")
		for range 3600 {
			tick.Failed(errors.New("no disk"))
			time.Sleep(time.Second)
		}
		require.Equal(t, 1, strings.Count(w.log.String(), "msg=loop_failing "))
		// After 10, 30, 70, 150, 310, 630 and 1230 s, then every ten minutes.
		require.Equal(t, 10, strings.Count(w.log.String(), "msg=loop_still_failing "))
	})
}

func TestTurnThatDoesNotComeBackFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := setup()
		go w.Run(t.Context())
		settle := w.Loop(loop.Settle, "eu")
		settle.Began()
		time.Sleep(15 * time.Second)
		require.Empty(t, w.failing(0))
		time.Sleep(15 * time.Second)
		require.Equal(t, []string{"loop settle of target eu has been failing for 30s: no answer for 21s"}, w.failing(loop.Lasting))
		require.Equal(t, 1.0, w.count(loop.Settle, "eu"))
		settle.Succeeded()
		require.Empty(t, w.failing(0))
	})
}

func TestWhatDoesNotRunHereDoesNotFailHere(t *testing.T) {
	t.Parallel()
	w := setup()
	w.Loop(loop.Sync, "eu").Failed(errors.New("a"))
	w.Loop(loop.Open, "").Failed(errors.New("b"))
	w.Loop(loop.Listen, "").Failed(errors.New("c"))
	w.RestTarget("eu")
	w.RestLeader()
	require.Equal(t, []string{"loop listen has been failing for 0s: c"}, w.failing(0))
	require.Zero(t, w.gauge(loop.Open, ""))
}

func TestNoMonitorKnowsNothing(t *testing.T) {
	t.Parallel()
	var m *loop.Monitor
	l := m.Loop(loop.Read, "eu")
	l.Began()
	l.Failed(errors.New("a"))
	l.Succeeded()
	m.RestTarget("eu")
	require.Empty(t, m.Failing(0))
}

func TestTextHoldsNoSecrets(t *testing.T) {
	t.Parallel()
	cast := &pgconn.PgError{Severity: "ERROR", Code: "22P02", Message: `invalid input syntax for type integer: "hunter2"`}
	key := &pgconn.PgError{Severity: "ERROR", Code: "23503", Message: `violates foreign key constraint "k" on table "t"`, Detail: "Key (password)=(hunter2) is not present"}
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("a\x00b\xff"), "ab"},
		{fmt.Errorf("read rows: %w", cast), "read rows: ERROR: invalid input syntax for type integer (SQLSTATE 22P02)"},
		{key, `ERROR: violates foreign key constraint "k" on table "t" (SQLSTATE 23503)`},
		{errors.New("dial postgres://ann:hunter2@db/x"), "dial postgres://REDACTED@db/x"},
		{errors.New("dial http://ann:hun@ter2/x#1@db/x"), "dial http://REDACTED@db/x"}, // F136
		{errors.New("parse host=db password='hunter 2' port=1"), "parse host=db password=REDACTED port=1"},
		{errors.New(strings.Repeat("é", 300)), strings.Repeat("é", 248) + "..."},
	} {
		require.Equal(t, c.want, loop.Text(c.err))
	}
}
