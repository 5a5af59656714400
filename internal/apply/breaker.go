package apply

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

// breaker decides when a target as a whole is taken to be down. An unreachable target is one fact, not ten thousand
// failing objects: while the circuit is open nothing is called but probes, and no object is charged with an attempt.
type breaker struct {
	timeouts int // timeouts in a row that count as down

	mu          sync.Mutex // guards what follows
	unreachable int        // in a row
	timedOut    int        // in a row
	open        bool
	probes      int // failed probes since it opened
}

// unreached counts a call that did not reach the target and reports whether the circuit has just opened.
func (b *breaker) unreached() (opened bool) {
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

// timeout counts a call that timed out: a target that swallows every call is down too.
func (b *breaker) timeout() (opened bool) {
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

// answered counts a call that the target answered and reports whether the circuit has just closed.
func (b *breaker) answered() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable, b.timedOut, b.probes = 0, 0, 0
	closed, b.open = b.open, false
	return closed
}

// passed counts a check that passed and reports whether the circuit has just closed. It closes on trial: what a check
// finds well may still fail every call, so the next such call opens it again, and the pauses go on growing until one
// is answered.
func (b *breaker) passed() (closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable, b.timedOut = breakerUnreachable-1, b.timeouts-1
	b.probes++
	closed, b.open = b.open, false
	return closed
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

// failedProbe counts a check that failed.
func (b *breaker) failedProbe() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probes++
}

// pause is the time until the next probe.
func (b *breaker) pause() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return jittered(Backoff{Min: probeMin, Max: probeMax}.Pause(b.probes + 1))
}
