package outbox_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// oracle knows what writers commit and when, and judges what consumers saw: each committed key exactly once, not before
// its commit began, and not after the first tick that began after its commit had ended.
type oracle struct {
	attempts atomic.Int64 // ticks that were begun, successful ones and others

	mu        sync.Mutex // guards what follows
	fates     map[string]*fate
	revisions []int64 // by attempt: the newest revision after it
	seen      map[string]map[string]sighting
	early     []string
}

// fate is what became of a key.
type fate struct {
	committing, committed bool
	attempts              int64 // ticks that were begun when the commit had ended
}

type sighting struct {
	times    int
	revision int64
}

func newOracle() *oracle {
	return &oracle{fates: map[string]*fate{}, seen: map[string]map[string]sighting{}}
}

// wrote tells of keys that were written and not committed yet.
func (o *oracle) wrote(keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		o.fates[key] = &fate{}
	}
}

// committing tells that a commit of keys is about to be sent, committed that it was answered.
func (o *oracle) committing(keys []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		o.fates[key].committing = true
	}
}

func (o *oracle) committed(keys []string) {
	attempts := o.attempts.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		o.fates[key].committed, o.fates[key].attempts = true, attempts
	}
}

// begin and end enclose an attempt to make a tick; newest is the newest revision after it.
func (o *oracle) begin() { o.attempts.Add(1) }

func (o *oracle) end(newest int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.revisions = append(o.revisions, newest)
}

// saw tells that a consumer read keys in the batch that ends with a revision.
func (o *oracle) saw(consumer string, keys []string, revision int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[consumer] == nil {
		o.seen[consumer] = map[string]sighting{}
	}
	for _, key := range keys {
		if f := o.fates[key]; f == nil || !f.committing {
			o.early = append(o.early, fmt.Sprintf("%s: %s", consumer, key))
		}
		o.seen[consumer][key] = sighting{times: o.seen[consumer][key].times + 1, revision: revision}
	}
}

// verdict counts what a consumer did wrong. A consumer that reads tick by tick can also be late.
type verdict struct{ Committed, Lost, Doubled, Early, Late int }

func (o *oracle) judge(consumer string) (v verdict) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, f := range o.fates {
		s := o.seen[consumer][key]
		switch {
		case !f.committed:
			continue
		case s.times == 0:
			v.Lost++
		case s.times > 1:
			v.Doubled++
		}
		v.Committed++
		// The attempt after those that were begun by then began after the commit.
		if s.times > 0 && s.revision > o.revisions[f.attempts] {
			v.Late++
		}
	}
	prefix := consumer + ": "
	v.Early = len(slices.DeleteFunc(slices.Clone(o.early), func(text string) bool { return len(text) < len(prefix) || text[:len(prefix)] != prefix }))
	return v
}
