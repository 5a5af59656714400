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

// health asks the target whether it is healthy.
type health struct {
	*core
	wanted chan struct{} // an apply waits for the answer
}

// begin writes down whether this owner will report the target's health. Nothing that it applies can be recorded
// before: an operation that it completes never passes for one of a target that reports none.
func (h *health) begin(ctx context.Context) error {
	_, reports := h.cfg.Driver.(driver.HealthReporter)
	err := h.queries.TargetHealthBegin(ctx, store.TargetHealthBeginParams{
		Reports: reports, TargetID: h.cfg.Grant.ID, Owner: h.cfg.Instance, Term: h.cfg.Grant.Term,
	})
	if err != nil {
		return fmt.Errorf("record whether target %s reports its health: %w", h.cfg.Name, database.Explain(err))
	}
	return nil
}

// watch asks whether the target is healthy while an apply waits for that, and never else.
func (h *health) watch(ctx context.Context) error {
	reporter, ok := h.cfg.Driver.(driver.HealthReporter)
	if !ok {
		return nil
	}
	timer, asking := time.NewTimer(0), true // a former owner may have left an apply that waits
	defer timer.Stop()
	answer := "" // the last one: why it is not healthy
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
		asked, unhealthy, err := h.ask(ctx, reporter)
		if err != nil {
			return err
		}
		h.part(loop.Health).Succeeded()
		if asking = asked; asking {
			h.tell(answer, unhealthy)
			answer = unhealthy
			timer.Reset(healthEvery - rand.N(healthEvery/10))
		}
	}
}

// ask asks once, if an apply waits, and records the answer; asked reports whether it did. When it was asked is what
// the database's clock says before. unhealthy says why it is not, "" that it is.
func (h *health) ask(ctx context.Context, reporter driver.HealthReporter) (asked bool, unhealthy string, err error) {
	row, err := h.queries.TargetHealthWanted(ctx, h.cfg.Grant.ID)
	if err != nil {
		return false, "", fmt.Errorf("ask whether an apply waits for target %s: %w", h.cfg.Name, database.Explain(err))
	}
	if !row.Wanted {
		return false, "", nil
	}
	if err := h.call(ctx, reporter); err != nil {
		unhealthy = cmp.Or(clip(err.Error()), "the driver gave no reason")
	}
	if ctx.Err() != nil {
		return false, "", nil // cut short: that says nothing
	}
	err = h.queries.TargetHealthRecord(ctx, store.TargetHealthRecordParams{
		TargetID: h.cfg.Grant.ID, Owner: h.cfg.Instance, Term: h.cfg.Grant.Term, AskedAt: row.Now, Unhealthy: unhealthy,
	})
	if err != nil {
		return false, "", fmt.Errorf("record the health of target %s: %w", h.cfg.Name, database.Explain(err))
	}
	return true, unhealthy, nil
}

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
func (h *health) call(ctx context.Context, reporter driver.HealthReporter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.cfg.Timeout, &timeoutError{after: h.cfg.Timeout})
	defer cancel()
	return h.safely(func() error { return reporter.Health(ctx) })
}
