package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/cli"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server"
)

// eventQueue is how many events may wait to be printed. More are counted: the server never waits for a terminal.
const eventQueue = 4096

// eventPrinter prints one line for each driver call. Those of the first sync that succeed are only counted.
type eventPrinter struct {
	w       io.Writer
	queue   chan stamped
	unshown atomic.Int64
	done    chan struct{}

	mu    sync.Mutex
	first map[string]int // applied in the first sync, by target; nil when it is over; guarded by mu
	began time.Time
}

// stamped is an event with its time.
type stamped struct {
	server.Event

	at time.Time
}

func newEventPrinter(w io.Writer) *eventPrinter {
	p := &eventPrinter{w: w, queue: make(chan stamped, eventQueue), done: make(chan struct{}), first: map[string]int{}, began: time.Now()}
	go p.print()
	return p
}

// take is server.Options.Events.
func (p *eventPrinter) take(e server.Event) {
	if p.counted(e) {
		return
	}
	select {
	case p.queue <- stamped{e, time.Now()}:
	default:
		p.unshown.Add(1)
	}
}

func (p *eventPrinter) counted(e server.Event) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first == nil || e.Verdict != driver.VerdictDone {
		return false
	}
	p.first[e.Target]++
	return true
}

// summarize tells what the first sync did, and ends it.
func (p *eventPrinter) summarize() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, target := range slices.Sorted(maps.Keys(p.first)) {
		_, _ = fmt.Fprintf(p.w, "%s: %s in the first sync\n", target, counted(p.first[target], "object"))
	}
	if len(p.first) > 0 {
		_, _ = fmt.Fprintf(p.w, "everything is applied, %s after the start\n", time.Since(p.began).Round(time.Millisecond))
	}
	p.first = nil
}

// live has every event printed from now on.
func (p *eventPrinter) live() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.first = nil
}

// close prints what waits. Nothing may be taken any more.
func (p *eventPrinter) close() {
	close(p.queue)
	<-p.done
}

func (p *eventPrinter) print() {
	defer close(p.done)
	for e := range p.queue {
		_, _ = fmt.Fprintln(p.w, eventLine(e))
		if n := p.unshown.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(p.w, "... and %s too fast to show\n", counted(int(n), "event"))
		}
	}
}

// eventLine is such as "15:04:05.000  eu-west  topology/17  applied  1.9ms". The time is from the moment that the change
// became known, or for a sync or a retry that of the call.
func eventLine(e stamped) string {
	did := "applied"
	if e.Action == "delete" {
		did = "deleted"
	}
	took := e.Lag
	if took <= 0 {
		took = e.Took
	}
	line := fmt.Sprintf("%s  %s  %s/%s  %s  %s", e.at.Format("15:04:05.000"), e.Target, e.Resource, e.Key, did, took.Round(10*time.Microsecond))
	switch e.Verdict {
	case driver.VerdictDone:
	case driver.VerdictWaiting:
		line = fmt.Sprintf("%s  %s  %s/%s  waiting: %v", e.at.Format("15:04:05.000"), e.Target, e.Resource, e.Key, e.Err)
	default:
		line = fmt.Sprintf("%s  %s  %s/%s  failed (%s): %v", e.at.Format("15:04:05.000"), e.Target, e.Resource, e.Key, e.Verdict, e.Err)
	}
	return cli.Clean(line)
}
