package throttle

import (
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Rate limits calls a second.
type Rate struct {
	limiter *rate.Limiter // nil: no limit
	spare   atomic.Int64  // tokens of limiter that were taken for calls that were not made
}

// NewRate returns a limit of so many calls a second, with bursts of a tenth of them, at least one; 0: no limit.
func NewRate(calls float64) *Rate {
	if calls <= 0 {
		return &Rate{}
	}
	return &Rate{limiter: rate.NewLimiter(rate.Limit(calls), max(1, int(calls/10)))}
}

// Take waits, by means of pause, until the limit allows one more call. An error of pause is returned, and the token given back.
func (r *Rate) Take(pause func(time.Duration) error) error {
	if r.limiter == nil {
		return nil
	}
	if r.spare.Add(-1) >= 0 {
		return nil
	}
	r.spare.Add(1)
	turn := r.limiter.Reserve()
	err := pause(turn.Delay())
	if err != nil {
		turn.Cancel()
	}
	return err
}

// Return gives back what was taken for calls that were not made.
func (r *Rate) Return(calls int) { r.spare.Add(int64(calls)) }
