package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// delivery is one call of the consumer.
type delivery struct {
	change

	at time.Time
}

// owed is what a consumer has not been given yet: every change, or the last one of every object where the consumer may
// be given newer versions instead of older ones.
type owed struct {
	coalesces bool
	last      map[int]int64
	events    map[change]struct{}
}

func newOwed(coalesces bool, commits []change) *owed {
	o := &owed{coalesces: coalesces, last: map[int]int64{}, events: map[change]struct{}{}}
	for _, c := range commits {
		if !coalesces {
			o.events[c] = struct{}{}
		} else if n, ok := o.last[c.id]; !ok || n < c.n {
			o.last[c.id] = c.n
		}
	}
	return o
}

// give says whether the delivery was owed.
func (o *owed) give(c change) bool {
	before := o.left()
	if !o.coalesces {
		delete(o.events, c)
	} else if n, ok := o.last[c.id]; ok && n <= c.n {
		delete(o.last, c.id)
	}
	return o.left() < before
}

func (o *owed) left() int { return len(o.last) + len(o.events) }

// inbox takes down what a consumer is given, and when.
type inbox struct {
	mu   sync.Mutex // guards what follows
	log  []delivery
	owed *owed
	done chan struct{} // closed when nothing is owed any more
	last time.Time     // of the newest delivery that was owed
}

// deliver is the consumer.
func (b *inbox) deliver(c change) {
	at := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, delivery{c, at})
	b.giveLocked(c, at)
}

func (b *inbox) giveLocked(c change, at time.Time) {
	if b.owed == nil || !b.owed.give(c) {
		return
	}
	b.last = at
	if b.owed.left() == 0 {
		close(b.done)
	}
}

// forget begins a new measurement.
func (b *inbox) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log, b.owed, b.last = nil, nil, time.Time{}
}

// expect says what has to come. What has come since the last forget counts.
func (b *inbox) expect(coalesces bool, commits []change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.owed, b.done, b.last = newOwed(coalesces, commits), make(chan struct{}), time.Time{}
	if b.owed.left() == 0 {
		close(b.done)
	}
	for _, d := range b.log {
		b.giveLocked(d.change, d.at)
	}
}

// wait waits until all has come, or nothing has for as long as patience lasts. It returns what is missing.
func (b *inbox) wait(ctx context.Context, patience time.Duration) (missing int, err error) {
	b.mu.Lock()
	done, come := b.done, len(b.log)
	b.mu.Unlock()
	for {
		select {
		case <-done:
			return 0, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(patience):
		}
		b.mu.Lock()
		before, left := come, b.owed.left()
		come = len(b.log)
		b.mu.Unlock()
		if come == before {
			return left, nil
		}
	}
}

// deliveries returns what has come since the last forget, in order.
func (b *inbox) deliveries() []delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clip(b.log)
}

// finished returns when the newest of the owed deliveries came.
func (b *inbox) finished() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}
