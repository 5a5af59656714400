// Package discard is the driver that takes every object and touches nothing. It measures what everything but the target
// costs, and it shows what a real target would be asked to do before one is switched on.
package discard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

// latencyMax is far longer than any call may take; the target's own timeout cuts calls short before.
const latencyMax = time.Hour

// Kind is the driver `discard`.
func Kind() driver.Kind { return driver.Kind{Name: "discard", Open: open} }

func open(_ string, opts driver.Options, _ driver.Env) (driver.Driver, error) {
	r := options.New(opts)
	d := &discard{latency: r.Duration("latency", 0, 0, latencyMax), errorRate: r.Fraction("error_rate", 0)}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return d, nil
}

type discard struct {
	latency   time.Duration
	errorRate float64 // of calls, from 0 to 1
}

var errAsked = errors.New("discarded, and reported as failed, as error_rate asks")

// Apply does nothing with the object.
func (d *discard) Apply(ctx context.Context, _ driver.Object) driver.Outcome { return d.call(ctx) }

// Delete does nothing either.
func (d *discard) Delete(ctx context.Context, _ driver.Ref) driver.Outcome { return d.call(ctx) }

// Close has nothing to release.
func (*discard) Close(context.Context) error { return nil }

func (d *discard) call(ctx context.Context) driver.Outcome {
	if d.latency > 0 {
		timer := time.NewTimer(d.latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return driver.Backoff(fmt.Errorf("cut short: %w", context.Cause(ctx)))
	}
	if d.errorRate > 0 && rand.Float64() < d.errorRate {
		return driver.Backoff(errAsked)
	}
	return driver.Done()
}
