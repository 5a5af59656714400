package throttle

import (
	"sync"
	"time"
)

const (
	// slowMost bounds for how long one answer keeps a target from being called: what the others would have answered is found out then.
	slowMost = time.Minute
	// slowShown is for how long a target must have asked for no calls, without a pause of its own between, to be in trouble.
	slowShown = 5 * time.Second
)

// Slowdown is what a target asks for that is called too often: no calls at all for a while.
type Slowdown struct {
	mu    sync.Mutex // guards what follows
	began time.Time
	until time.Time
	cause string
}

// Down keeps the target from being called for as long as it asks for with an answer, a minute at most. It reports whether the target
// was called until now.
func (s *Slowdown) Down(after time.Duration, answer string) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	// It goes on when it is asked for again by the first calls after a pause.
	if first = now.Sub(s.until) > slowShown; first {
		s.began, s.cause = now, answer
	}
	if until := now.Add(min(after, slowMost)); until.After(s.until) {
		s.until = until
	}
	return first
}

// Remaining returns for how long there are to be no calls.
func (s *Slowdown) Remaining() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Until(s.until)
}

// Trouble says that the target takes no calls, when it has done so for a while; "": it does.
func (s *Slowdown) Trouble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.until) > slowShown || s.until.Sub(s.began) < slowShown {
		return ""
	}
	return "it asks to be called less often (set rate to what it takes): " + s.cause
}
