package throttle

import (
	"sync"
	"time"
)

const (
	// breakerUnreachable calls in a row that did not reach the target open the circuit.
	breakerUnreachable = 3
	probeMin           = time.Second
	probeMax           = 30 * time.Second
)

// Breaker decides when a target as a whole is taken to be down. An unreachable target is one fact, not ten thousand
// failing objects: while the circuit is open nothing is called but probes, and no object is charged with an attempt.
type Breaker struct {
	timeouts int // timeouts in a row that count as down

	mu          sync.Mutex // guards what follows
	unreachable int        // in a row
	timedOut    int        // in a row
	open        bool
	probes      int // failed probes since it opened
}

// NewBreaker returns a closed one, which so many timeouts in a row open.
func NewBreaker(timeouts int) *Breaker { return &Breaker{timeouts: timeouts} }

// Unreached counts a call that did not reach the target and reports whether the circuit has just opened.
func (b *Breaker) Unreached() (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable++
	if b.open {
		b.probes++
		return false
	}
	b.open = b.unreachable >= breakerUnreachable
	return b.open
}

// Timeout counts a call that timed out: a target that swallows every call is down too.
func (b *Breaker) Timeout() (opened bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.timedOut++
	if b.open {
		b.probes++
		return false
	}
	b.open = b.timedOut >= b.timeouts
	return b.open
}

// Answered counts a call that the target answered and reports whether the circuit has just closed.
func (b *Breaker) Answered() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable, b.timedOut, b.probes = 0, 0, 0
	closed, b.open = b.open, false
	return closed
}

// Passed counts a check that passed and reports whether the circuit has just closed. It closes on trial: what a check
// finds well may still fail every call, so the next such call opens it again, and the pauses go on growing until one
// is answered.
func (b *Breaker) Passed() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable, b.timedOut = breakerUnreachable-1, b.timeouts-1
	b.probes++
	closed, b.open = b.open, false
	return closed
}

// IsOpen reports whether the target is taken to be down.
func (b *Breaker) IsOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// FailedProbe counts a check that failed.
func (b *Breaker) FailedProbe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probes++
}

// Pause returns the time until the next probe: 1 s, doubled after each that failed up to 30 s, and jittered.
func (b *Breaker) Pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Jittered(Backoff{Min: probeMin, Max: probeMax}.Pause(b.probes + 1))
}
