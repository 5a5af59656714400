package lease

import (
	"context"
	"sync"
	"time"
)

// hold is a lease in hand. It ends by itself, without a word from anybody, when it was not renewed in time.
type hold struct {
	clock  func() time.Duration
	cancel context.CancelCauseFunc // ends the run's context
	onLost func()                  // called after cancel when time ran out; must not block

	mu       sync.Mutex
	deadline time.Duration // by clock: until then the lease surely lives; guarded by mu
	over     bool          // nothing brings it back; guarded by mu
	timer    *time.Timer   // guarded by mu
}

// newHold begins a lease that lives until deadline. A deadline in the past is an ended lease.
func newHold(clock func() time.Duration, deadline time.Duration, cancel context.CancelCauseFunc, onLost func()) *hold {
	h := &hold{clock: clock, cancel: cancel, onLost: onLost, deadline: deadline}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(deadline-clock(), h.expire)
	return h
}

// expire runs when the timer fires, which may be before the deadline (it was moved) or long after (the process was frozen).
func (h *hold) expire() {
	h.mu.Lock()
	left := h.deadline - h.clock()
	lost := !h.over && left <= 0
	if !h.over && left > 0 {
		h.timer.Reset(left)
	}
	h.over = h.over || lost
	h.mu.Unlock()
	if lost {
		h.cancel(ErrLost)
		h.onLost()
	}
}

// renew moves the deadline. It returns false when the lease ended before: a run that was told so stays ended, even
// if the server has renewed the lease after all.
func (h *hold) renew(deadline time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || h.clock() >= h.deadline {
		return false
	}
	h.deadline = deadline
	h.timer.Reset(deadline - h.clock())
	return true
}

// remaining is how long the lease surely lives; 0 when it is over.
func (h *hold) remaining() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return 0
	}
	return max(0, h.deadline-h.clock())
}

// lose ends the lease and with it the run's context.
func (h *hold) lose() {
	h.end()
	h.cancel(ErrLost)
}

// end lets go of the lease. The run has returned.
func (h *hold) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over = true
	h.timer.Stop()
}
