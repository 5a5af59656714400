package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// call is one request of the product to a webhook target, as the target saw it.
type call struct {
	Object   object
	Delete   bool
	Term     int64
	Revision int64
	Versions map[component]int64 // rows that the spec was made from, with their versions
	Replica  string              // who called
	Remote   bool                // an agent did
	Begin    time.Time
	End      time.Time // when it was answered, or its client had gone
	Gone     bool      // the client went without an answer
	Effect   bool      // it took effect
	Outcome  string    // what the target answered or did to it
	Open     bool      // End is not known yet
}

func (c call) action() string {
	if c.Delete {
		return "delete"
	}
	return "apply"
}

func (c call) String() string {
	var versions []string
	for name, version := range c.Versions {
		versions = append(versions, fmt.Sprintf("%s/%s=%d", name.Tab, name.Key, version))
	}
	slices.Sort(versions)
	end := c.End.Format("05.000000")
	if c.Open {
		end = "open"
	}
	return fmt.Sprintf("%s-%s %s %s of %s, term %d, revision %d, %s: %s", c.Begin.Format("15:04:05.000000"), end,
		c.Replica, c.action(), c.Object, c.Term, c.Revision, strings.Join(versions, " "), c.Outcome)
}

// journal keeps every call of a world.
type journal struct {
	mu    sync.Mutex // guards what follows
	calls []*call    // in order of Begin
}

func (j *journal) begin(c call) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Begin, c.Open = time.Now(), true
	j.calls = append(j.calls, &c)
	return &c
}

// took notes that a call has taken effect.
func (j *journal) took(c *call) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.Effect = true
}

func (j *journal) end(c *call, outcome string, gone bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c.End, c.Open, c.Outcome, c.Gone = time.Now(), false, outcome, gone
}

// length returns how many calls there are.
func (j *journal) length() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.calls)
}

// has reports whether there is a call for an object among those after the first ones.
func (j *journal) has(o object, after int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.ContainsFunc(j.calls[after:], func(c *call) bool { return c.Object == o })
}

// all returns a copy of the calls so far, in order of their begin.
func (j *journal) all() []call {
	j.mu.Lock()
	defer j.mu.Unlock()
	calls := make([]call, len(j.calls))
	for i, c := range j.calls {
		calls[i] = *c
	}
	return calls
}

// of returns the last calls for an object until a time and a few after it.
func of(calls []call, o object, until time.Time) []call {
	const before, after = 12, 4
	var past, later []call
	for _, c := range calls {
		switch {
		case c.Object != o:
		case !c.Begin.After(until):
			past = append(past, c)
		case len(later) < after:
			later = append(later, c)
		}
	}
	return append(past[max(0, len(past)-before):], later...)
}
