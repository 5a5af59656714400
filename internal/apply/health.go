package apply

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/loop"
	"github.com/pgreconciler/reconciler/internal/store"
)

// healthEvery is how often a target is asked whether it is healthy, while an apply waits for that.
const healthEvery = time.Second

// health asks the target whether it, or each of its objects, is healthy.
type health struct {
	*core
	wanted chan struct{} // an apply, or ask_health(), waits for the answer

	answer string           // of the target as a whole, the last one: why it is not healthy
	rounds map[int64]*round // about objects, by operation; 0: all of the target
}

// begin writes down whether this owner will report the target's health. Nothing that it applies can be recorded
// before: an operation that it completes never passes for one of a target that reports none.
func (h *health) begin(ctx context.Context) error {
	_, whole := h.cfg.Driver.(driver.HealthReporter)
	_, objects := h.cfg.Driver.(driver.ObjectHealthReporter)
	err := h.queries.TargetHealthBegin(ctx, store.TargetHealthBeginParams{
		Reports: whole || objects, ReportsObjects: objects, TargetID: h.cfg.Grant.ID, Owner: h.cfg.Instance, Term: h.cfg.Grant.Term,
	})
	if err != nil {
		return fmt.Errorf("record whether target %s reports its health: %w", h.cfg.Name, database.Explain(err))
	}
	return nil
}

// watch asks whether the target is healthy while somebody waits for that, and never else.
func (h *health) watch(ctx context.Context) error {
	var turn func(context.Context, []store.TargetHealthWantedRow) (time.Duration, error)
	if reporter, ok := h.cfg.Driver.(driver.ObjectHealthReporter); ok {
		turn = h.objects(reporter)
	} else if reporter, ok := h.cfg.Driver.(driver.HealthReporter); ok {
		turn = h.whole(reporter)
	} else {
		return nil
	}
	timer, asking := time.NewTimer(0), true // a former owner may have left an apply that waits
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.wanted:
			if asking {
				continue // the timer runs
			}
		case <-timer.C:
		}
		rows, err := h.queries.TargetHealthWanted(ctx, h.cfg.Grant.ID)
		if err != nil {
			return fmt.Errorf("ask who waits for the health of target %s: %w", h.cfg.Name, database.Explain(err))
		}
		again, err := turn(ctx, rows)
		if err != nil {
			return err
		}
		h.part(loop.Health).Succeeded()
		if asking = len(rows) > 0; asking {
			timer.Reset(again)
		}
	}
}

// soon is the pause between two questions.
func soon() time.Duration { return healthEvery - rand.N(healthEvery/10) }

// whole returns a turn for a target that is asked as a whole.
func (h *health) whole(reporter driver.HealthReporter) func(context.Context, []store.TargetHealthWantedRow) (time.Duration, error) {
	return func(ctx context.Context, rows []store.TargetHealthWantedRow) (time.Duration, error) {
		if len(rows) == 0 {
			return 0, nil
		}
		unhealthy, err := h.ask(ctx, reporter, rows[0].Now)
		if err != nil || ctx.Err() != nil {
			return 0, err
		}
		h.tell(h.answer, unhealthy)
		h.answer = unhealthy
		return soon(), nil
	}
}

// ask asks once and records the answer. When it was asked is what the database's clock says before. unhealthy says why the target
// is not healthy, "" that it is.
func (h *health) ask(ctx context.Context, reporter driver.HealthReporter, now time.Time) (unhealthy string, err error) {
	if err := h.call(ctx, func(ctx context.Context) error { return reporter.Health(ctx) }); err != nil {
		unhealthy = cmp.Or(clip(err.Error()), noReason)
	}
	if ctx.Err() != nil {
		return "", nil // cut short: that says nothing
	}
	err = h.queries.TargetHealthRecord(ctx, store.TargetHealthRecordParams{
		TargetID: h.cfg.Grant.ID, Owner: h.cfg.Instance, Term: h.cfg.Grant.Term, AskedAt: now, Unhealthy: unhealthy,
	})
	if err != nil {
		return "", fmt.Errorf("record the health of target %s: %w", h.cfg.Name, database.Explain(err))
	}
	return unhealthy, nil
}

const noReason = "the driver gave no reason"

// tell logs an answer that is another one than that before.
func (h *health) tell(before, unhealthy string) {
	was, _, _ := strings.Cut(before, "\n") // without the stack of a panic
	is, _, _ := strings.Cut(unhealthy, "\n")
	switch is {
	case was:
	case "":
		h.cfg.Logger.Info("target_healthy", "target", h.cfg.Name)
	default:
		h.cfg.Logger.Warn("target_unhealthy", "target", h.cfg.Name, "error", is, "effect", "no further target begins in applies that wait for it")
	}
}

// call asks the driver. A panic is a no.
func (h *health) call(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.cfg.Timeout, &timeoutError{after: h.cfg.Timeout})
	defer cancel()
	return h.safely(func() error { return ask(ctx) })
}
