package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

// bodyTimeout is how long the body of a report may take to arrive.
const bodyTimeout = 30 * time.Second

// refusal is why a report is not taken, with the status of the answer and the label of the metric (metrics.ReportRefusals).
type refusal struct {
	status       int
	reason, text string
}

func (e *refusal) Error() string { return e.text }

func badBody(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, "body", fmt.Sprintf(format, args...)}
}

func tooLarge(format string, args ...any) error {
	return &refusal{http.StatusRequestEntityTooLarge, "size", fmt.Sprintf(format, args...)}
}

// atLine adds the number of a line.
func atLine(number int, err error) error {
	why, ok := errors.AsType[*refusal](err)
	if !ok {
		return badBody("line %d: %v", number, err)
	}
	return &refusal{why.status, why.reason, fmt.Sprintf("line %d: %s", number, why.text)}
}

// observations takes what a client reports of a target: all of it, or nothing.
func (h *Handler) observations(w http.ResponseWriter, r *http.Request) {
	refused := h.hub.cfg.Metrics.ReportsRefused
	g := h.authenticate(w, r)
	if g == nil {
		refused.WithLabelValues("token").Inc()
		return
	}
	name := r.PathValue("target")
	done, err := h.take(w, r, g, name)
	var why *refusal
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct { //nolint:errchkjson // the client has gone
			Accepted int64 `json:"accepted"`
			Ignored  int64 `json:"ignored"`
		}{done.Accepted, done.Ignored})
	case errors.As(err, &why):
		refused.WithLabelValues(why.reason).Inc()
		refuse(w, why.status, why.text)
	case errors.Is(err, ErrUnknown):
		refused.WithLabelValues("target").Inc()
		h.fail(w, name, err)
	case database.IsUnavailable(err):
		refused.WithLabelValues("database").Inc()
		h.fail(w, name, err)
	default:
		refused.WithLabelValues("database").Inc()
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("the database does not take the report: %v; try again", database.Explain(err)))
	}
}

// take checks, reads and stores a report.
func (h *Handler) take(w http.ResponseWriter, r *http.Request, g *grant, name string) (done store.StreamReportRow, err error) {
	if !g.mayReport(name) {
		return done, &refusal{http.StatusForbidden, "forbidden", fmt.Sprintf("token %q may not report on target %q", g.name, name)}
	}
	if err := onlyParameters(r); err != nil {
		return done, badBody("%v", err)
	}
	target, err := h.reported(r.Context(), name)
	if err != nil {
		return done, err
	}
	place, err := h.reports.enter(r.Context(), target)
	if err != nil {
		return done, err
	}
	defer place.leave()
	ctl := http.NewResponseController(w)
	if err := ctl.SetReadDeadline(time.Now().Add(h.reports.patience)); err != nil {
		return done, err
	}
	report, err := readReport(w, r, g, place.grow)
	if err != nil {
		return done, err
	}
	// The server goes on reading to notice that the client has gone, and must not take the end of its time for that.
	if err := ctl.SetReadDeadline(time.Time{}); err != nil {
		return done, err
	}
	crash.Point(crash.ReportRead)
	if done, err = h.store(r.Context(), target, report); err != nil {
		return done, err
	}
	h.count(name, report, done)
	return done, nil
}

// reported returns the id of a target with a stream.
func (h *Handler) reported(ctx context.Context, name string) (id int32, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err = h.hub.ask(ctx, func(q *store.Queries) error {
		id, err = q.StreamFind(ctx, storable(name))
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrUnknown
	}
	return id, err
}

// store writes a report in one statement.
func (h *Handler) store(ctx context.Context, target int32, report *report) (done store.StreamReportRow, err error) {
	release, err := h.reports.writer(ctx)
	if err != nil {
		return done, err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	report.params.TargetID = target
	done, err = store.New(h.hub.cfg.DB).StreamReport(ctx, report.params)
	if err != nil {
		return done, refusedByDatabase(err)
	}
	if done.Problem != "" {
		line := 1
		if done.Wrong > 0 {
			line = report.lines[done.Wrong-1]
		}
		return done, badBody("line %d: %s", line, done.Problem)
	}
	crash.Point(crash.ReportWritten)
	if done.Awaited {
		err = h.lookAgain(ctx, report)
	}
	return done, err
}

// lookAgain makes objects due that wait for the report. If it fails, the client sends the report once more.
func (h *Handler) lookAgain(ctx context.Context, report *report) error {
	p := report.params
	_, err := store.New(h.hub.cfg.DB).StreamLookAgain(ctx, store.StreamLookAgainParams{
		TargetID: p.TargetID, Complete: p.Complete, Resources: p.Resources, Keys: p.Keys,
	})
	return err
}

// refusedByDatabase tells a report that cannot be stored (its values, or their depth) from a database that does not answer.
func refusedByDatabase(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok:
		return err
	case pgErr.Code == "P0002":
		return ErrUnknown
	case strings.HasPrefix(pgErr.Code, "22"), strings.HasPrefix(pgErr.Code, "23"), strings.HasPrefix(pgErr.Code, "54"):
		return badBody("PostgreSQL cannot store the report: %s", pgErr.Message)
	}
	return err
}

func (h *Handler) count(name string, report *report, done store.StreamReportRow) {
	m := h.hub.cfg.Metrics
	m.Stream(name)
	m.Reports.WithLabelValues(name).Inc()
	for state, n := range report.states {
		m.Observations.WithLabelValues(name, state).Add(float64(n))
	}
	m.Ignored.WithLabelValues(name).Add(float64(done.Ignored))
	m.LastReport.WithLabelValues(name).SetToCurrentTime()
}
