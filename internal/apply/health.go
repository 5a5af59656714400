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

// beginHealth writes down whether this owner will report the target's health. Nothing that it applies can be recorded
// before: an operation that it completes never passes for one of a target that reports none.
func (o *Owner) beginHealth(ctx context.Context) error {
	_, reports := o.cfg.Driver.(driver.HealthReporter)
	err := o.queries.TargetHealthBegin(ctx, store.TargetHealthBeginParams{
		Reports: reports, TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term,
	})
	if err != nil {
		return fmt.Errorf("record whether target %s reports its health: %w", o.cfg.Name, database.Explain(err))
	}
	return nil
}

// watchHealth asks whether the target is healthy while an apply waits for that, and never else.
func (o *Owner) watchHealth(ctx context.Context) error {
	reporter, ok := o.cfg.Driver.(driver.HealthReporter)
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
		case <-o.health:
			if asking {
				continue // the timer runs
			}
		case <-timer.C:
		}
		asked, unhealthy, err := o.askHealth(ctx, reporter)
		if err != nil {
			return err
		}
		o.part(loop.Health).Succeeded()
		if asking = asked; asking {
			o.tellHealth(answer, unhealthy)
			answer = unhealthy
			timer.Reset(healthEvery - rand.N(healthEvery/10))
		}
	}
}

// askHealth asks once, if an apply waits, and records the answer; asked reports whether it did. When it was asked is what
// the database's clock says before. unhealthy says why it is not, "" that it is.
func (o *Owner) askHealth(ctx context.Context, reporter driver.HealthReporter) (asked bool, unhealthy string, err error) {
	row, err := o.queries.TargetHealthWanted(ctx, o.cfg.Grant.ID)
	if err != nil {
		return false, "", fmt.Errorf("ask whether an apply waits for target %s: %w", o.cfg.Name, database.Explain(err))
	}
	if !row.Wanted {
		return false, "", nil
	}
	if err := o.callHealth(ctx, reporter); err != nil {
		unhealthy = cmp.Or(clip(err.Error()), "the driver gave no reason")
	}
	if ctx.Err() != nil {
		return false, "", nil // cut short: that says nothing
	}
	err = o.queries.TargetHealthRecord(ctx, store.TargetHealthRecordParams{
		TargetID: o.cfg.Grant.ID, Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, AskedAt: row.Now, Unhealthy: unhealthy,
	})
	if err != nil {
		return false, "", fmt.Errorf("record the health of target %s: %w", o.cfg.Name, database.Explain(err))
	}
	return true, unhealthy, nil
}

// tellHealth logs an answer that is another one than that before.
func (o *Owner) tellHealth(before, unhealthy string) {
	was, _, _ := strings.Cut(before, "\n") // without the stack of a panic
	is, _, _ := strings.Cut(unhealthy, "\n")
	switch is {
	case was:
	case "":
		o.cfg.Logger.Info("target_healthy", "target", o.cfg.Name)
	default:
		o.cfg.Logger.Warn("target_unhealthy", "target", o.cfg.Name, "error", is, "effect", "no further target begins in applies that wait for it")
	}
}

// callHealth asks the driver. A panic is a no.
func (o *Owner) callHealth(ctx context.Context, reporter driver.HealthReporter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, o.cfg.Timeout, &timeoutError{after: o.cfg.Timeout})
	defer cancel()
	return o.safely(func() error { return reporter.Health(ctx) })
}
