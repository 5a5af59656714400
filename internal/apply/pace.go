package apply

import (
	"sync"
	"time"
)

const (
	// readAhead is how much calling time is read in advance: long enough that one round trip serves many calls of a
	// fast target, short enough that a live change never waits longer behind what was read before.
	readAhead = 20 * time.Millisecond
	// windowMost bounds what is read at once.
	windowMost = 1000
	// windowBound is more than may ever be in flight: concurrency is at most 1,024.
	windowBound = 2048
)

// pace knows how long a call takes, as a moving average.
type pace struct {
	mu      sync.Mutex
	average time.Duration
}

func (p *pace) add(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.average += (d - p.average) / 16
	return p.average
}

// window is how many calls may be in flight, made or to be made, when one takes so long.
func window(concurrency int, call time.Duration) int {
	most := max(windowMost, concurrency)
	if call <= 0 {
		return most
	}
	return min(most, max(concurrency, int(int64(concurrency)*int64(readAhead)/int64(call))))
}
