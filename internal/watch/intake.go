package watch

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// reportsMost bounds the reports that are read at once, and reportsLarge those of them with more than smallBytes: some
	// hundred megabytes of memory.
	reportsMost  = 256
	reportsLarge = 2
	smallBytes   = 256 << 10
)

// intake bounds what reports cost this process: their number, their memory, and the connections that they have. One that has no place
// waits for answerTimeout at most. A target has one place, so that a client that has gone mad leaves room for others.
type intake struct {
	places, large, writes chan struct{}
	patience              time.Duration // with a body; tests lower it

	mu   sync.Mutex // guards busy
	busy map[int32]bool
}

func newIntake() *intake {
	return &intake{
		places: make(chan struct{}, reportsMost), large: make(chan struct{}, reportsLarge), writes: make(chan struct{}, writers),
		patience: bodyTimeout, busy: map[int32]bool{},
	}
}

// admission is the place of one report.
type admission struct {
	intake *intake
	target int32
	large  bool
}

// enter gives a report its place.
func (i *intake) enter(ctx context.Context, target int32) (*admission, error) {
	i.mu.Lock()
	taken := i.busy[target]
	i.busy[target] = true
	i.mu.Unlock()
	if taken {
		return nil, busy("another report on the target is under way")
	}
	a := &admission{intake: i, target: target}
	if !acquire(ctx, i.places) {
		a.vacate()
		return nil, busy("%d other reports are under way", reportsMost)
	}
	return a, nil
}

// grow is called when the report turns out to be a large one.
func (a *admission) grow(ctx context.Context) error {
	if !acquire(ctx, a.intake.large) {
		return busy("%d other large reports are under way", reportsLarge)
	}
	a.large = true
	return nil
}

func (a *admission) leave() {
	if a.large {
		<-a.intake.large
	}
	<-a.intake.places
	a.vacate()
}

func (a *admission) vacate() {
	a.intake.mu.Lock()
	defer a.intake.mu.Unlock()
	delete(a.intake.busy, a.target)
}

// writer waits for a connection to write a report with.
func (i *intake) writer(ctx context.Context) (release func(), err error) {
	if !acquire(ctx, i.writes) {
		return nil, busy("other reports are being written")
	}
	return func() { <-i.writes }, nil
}

func busy(format string, args ...any) error {
	return &refusal{http.StatusServiceUnavailable, "busy", fmt.Sprintf(format, args...) + "; try again"}
}

// acquire takes a slot. It returns false when none was free for answerTimeout.
func acquire(ctx context.Context, slots chan struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	select {
	case slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
