package throttle

import (
	"sync"
	"time"
)

const (
	// readAhead is how much calling time is read in advance: long enough that one round trip serves many calls of a
	// fast target, short enough that a live change never waits longer behind what was read before.
	readAhead = 20 * time.Millisecond
	// WindowMost bounds what is read at once.
	WindowMost = 1000
	// WindowBound is more than may ever be in flight: concurrency is at most 1,024.
	WindowBound = 2048
)

// Pace knows how long a call takes, as a moving average, and so how many may be in flight.
type Pace struct {
	concurrency int
	rate        float64 // calls a second; 0: unlimited

	mu      sync.Mutex // guards average
	average time.Duration
}

// NewPace returns that of a target with so many calls at once, and so many a second (0: unlimited).
func NewPace(concurrency int, rate float64) *Pace { return &Pace{concurrency: concurrency, rate: rate} }

// Window counts a call, and returns how many may be in flight. With a rate limit a call takes as long as its turn does.
func (p *Pace) Window(took time.Duration) int {
	call := p.add(took)
	if p.rate > 0 {
		call = max(call, time.Duration(float64(p.concurrency)/p.rate*float64(time.Second)))
	}
	return window(p.concurrency, call)
}

func (p *Pace) add(d time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.average += (d - p.average) / 16
	return p.average
}

// window is how many calls may be in flight, made or to be made, when one takes so long.
func window(concurrency int, call time.Duration) int {
	most := max(WindowMost, concurrency)
	if call <= 0 {
		return most
	}
	return min(most, max(concurrency, int(int64(concurrency)*int64(readAhead)/int64(call))))
}
