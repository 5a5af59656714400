package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	houseEvery  = 30 * time.Second
	rotateAfter = 5 * time.Minute
)

// retain empties parts of the outbox.
func (s *Steward) retain(ctx context.Context) (time.Duration, error) {
	for {
		done, err := store.New(s.Pool).OutboxRetain(ctx, store.OutboxRetainParams{MaxAge: s.MaxAge, MaxRows: s.MaxRows, RotateAfter: rotateAfter})
		if err != nil {
			return 0, fmt.Errorf("empty the outbox: %w", database.Explain(err))
		}
		if done == "" {
			return houseEvery, nil
		}
		crash.Point(crash.OutboxRetained)
		s.Metrics.Retained.Inc()
		s.Logger.Debug("outbox_retained", "done", done)
	}
}

// forget removes old ticks, removed resources and old applies.
func (s *Steward) forget(ctx context.Context) (time.Duration, error) {
	err := store.New(s.Pool).Forget(ctx, store.ForgetParams{MaxAge: s.MaxAge, AppliesKept: appliesKept, MostApplies: forgetMost})
	if err != nil {
		return 0, fmt.Errorf("forget old revisions, removed resources and old applies: %w", database.Explain(err))
	}
	return houseEvery, nil
}

// markUncaptured returns a duty that has resources looked at as a whole whose triggers may not write the outbox, and once
// more when they may.
func (s *Steward) markUncaptured() func(context.Context) (time.Duration, error) {
	var before []int32
	return func(ctx context.Context) (time.Duration, error) {
		uncaptured, err := store.New(s.Pool).OutboxUncaptured(ctx, before)
		if err != nil {
			return 0, fmt.Errorf("mark resources whose changes are not captured: %w", err)
		}
		if len(uncaptured)+len(before) > 0 && s.Wake != nil {
			s.Wake()
		}
		before = uncaptured
		return houseEvery, nil
	}
}
