package loop

import (
	"sync/atomic"
	"time"
)

// Loop is the entry of one loop. Its methods may be called by several goroutines, and on nil.
type Loop struct {
	m      *Monitor
	name   Name
	target string

	failing atomic.Bool  // copy of state.failures > 0, so that success costs nothing
	begun   atomic.Int64 // when the turn began that has not ended, in nanoseconds since the Monitor was made; 0: none

	state state // guarded by m.mu
}

// state is what is known of a loop that fails; the zero state is that of one that works.
type state struct {
	failures int64
	since    time.Time // of the first failure
	last     time.Time
	text     string
	stuck    bool // it does not fail, it does not come back

	logAt    time.Time // when it is logged again
	logPause time.Duration
}

// Began reports that a turn begins which should take seconds at most. One that does not come back counts as failing.
func (l *Loop) Began() {
	if l != nil {
		l.begun.Store(int64(time.Since(l.m.start)) + 1)
	}
}

// Succeeded reports that a turn did what it was to do, or that there was nothing to do.
func (l *Loop) Succeeded() {
	if l == nil {
		return
	}
	l.begun.Store(0)
	if l.failing.Load() {
		l.m.recovered(l)
	}
}

// Failed reports that a turn failed, and why.
func (l *Loop) Failed(err error) {
	if l == nil || err == nil {
		return
	}
	l.begun.Store(0)
	l.m.failed(l, err)
}

// Done is Succeeded for nil, Failed for everything else.
func (l *Loop) Done(err error) {
	if err != nil {
		l.Failed(err)
		return
	}
	l.Succeeded()
}

// turn is for how long the current turn has been under way; 0: none is.
func (l *Loop) turn() time.Duration {
	begun := l.begun.Load()
	if begun == 0 {
		return 0
	}
	return time.Since(l.m.start) - time.Duration(begun-1)
}
