package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// A report has at most so many observations, and follows one that was not full after this time.
	observationsMost = 1000
	reportEvery      = 200 * time.Millisecond
	// flushTimeout bounds the last reports of a controller.
	flushTimeout = 5 * time.Second
	// offFor is when a server is asked again that takes no reports.
	offFor = 10 * time.Minute
	// messageMost is how many bytes of an error are reported.
	messageMost = 1024
)

// reporter sends observations in batches. The newest one of an object counts.
type reporter struct {
	client *Client
	target string
	wake   chan struct{} // size one

	mu      sync.Mutex // guards what follows
	waiting map[Ref]Observation
	order   []Ref // of waiting
	most    int   // of a report
	off     bool  // the server takes no reports
	refusal bool  // the last report was refused because of that
	again   *time.Timer
}

// newReporter returns a reporter. all returns every observation there is, for a server that takes reports again.
func newReporter(c *Client, target string, all func() ([]Observation, error)) *reporter {
	r := &reporter{client: c, target: target, wake: make(chan struct{}, 1), waiting: map[Ref]Observation{}, most: observationsMost}
	r.again = time.AfterFunc(time.Hour, func() { r.on(all()) })
	r.again.Stop()
	return r
}

// on has everything reported after a time without reports, unless that is not known now.
func (r *reporter) on(all []Observation, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.again.Reset(offFor)
		return
	}
	r.off = false
	r.returnLocked(all)
}

// add has an observation sent soon.
func (r *reporter) add(o Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.off {
		return
	}
	at := Ref{o.Resource, o.Key}
	if _, waits := r.waiting[at]; !waits {
		r.order = append(r.order, at)
	}
	r.waiting[at] = o
	wake(r.wake)
}

// take returns the next batch.
func (r *reporter) take() (batch []Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.order), r.most)
	r.most = min(2*r.most, observationsMost)
	for _, at := range r.order[:n] {
		batch = append(batch, r.waiting[at])
		delete(r.waiting, at)
	}
	r.order = r.order[n:]
	if len(r.order) > 0 {
		wake(r.wake)
	}
	return batch
}

// run sends what is added until ctx ends, and then what is left, once.
func (r *reporter) run(ctx context.Context) {
	defer r.again.Stop()
	var next time.Time // the first one is sent at once
	for {
		select {
		case <-ctx.Done():
			r.flush(ctx, nil)
			return
		case <-r.wake:
		}
		if !wait(ctx, time.Until(next)) {
			continue
		}
		batch := r.take()
		if len(batch) > 0 && !r.send(ctx, batch) {
			r.flush(ctx, batch)
			return
		}
		if len(batch) < observationsMost {
			next = time.Now().Add(reportEvery)
		}
	}
}

// send sends a batch until the server has taken or refused it. It returns false when ctx ends before.
func (r *reporter) send(ctx context.Context, batch []Observation) bool {
	var seq uint64
	for failures := 0; ; failures++ {
		var err error
		seq, err = r.client.report(ctx, r.target, seq, func() (Report, error) { return Report{Observations: batch}, nil })
		if err == nil {
			r.taken()
			return true
		}
		if r.refused(err, batch) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if failures == 0 {
			r.client.log.Warn("report_failed", "target", r.target, "observations", len(batch), "error", err.Error())
		}
		pause := min(pauseMax, pauseMin<<min(failures, 10))
		if !wait(ctx, pause-rand.N(pause/2)) {
			return false
		}
	}
}

// taken notes that the server takes reports.
func (r *reporter) taken() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusal {
		r.client.log.Info("reports_on", "target", r.target)
	}
	r.refusal = false
}

// refused reports whether another attempt would not help, and does what does.
func (r *reporter) refused(err error, batch []Observation) bool {
	var status *StatusError
	if !errors.As(err, &status) || !status.permanent() || status.Status == http.StatusUnauthorized {
		return false
	}
	log := r.client.log.With("target", r.target, "error", err.Error())
	r.mu.Lock()
	defer r.mu.Unlock()
	switch status.Status {
	case http.StatusRequestEntityTooLarge, http.StatusBadRequest:
		if len(batch) > 1 { // one of them may be the cause, such as a version that a restore has lost
			r.most = len(batch) / 2
			r.returnLocked(batch)
			return true
		}
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		if !r.refusal {
			log.Warn("reports_off", "again_in", offFor)
		}
		r.off, r.refusal, r.order, r.waiting = true, true, nil, map[Ref]Observation{}
		r.again.Reset(offFor)
		return true
	}
	log.Error("report_dropped", "observations", len(batch), "first", fmt.Sprintf("%s %q", batch[0].Resource, batch[0].Key))
	return true
}

// returnLocked puts a batch back, without what has a newer observation.
func (r *reporter) returnLocked(batch []Observation) {
	for _, o := range batch {
		at := Ref{o.Resource, o.Key}
		if _, newer := r.waiting[at]; !newer {
			r.waiting[at] = o
			r.order = append(r.order, at)
		}
	}
	wake(r.wake)
}

// flush sends a batch and what is left.
func (r *reporter) flush(ctx context.Context, batch []Observation) {
	late := fmt.Errorf("the last reports took longer than %s", flushTimeout)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), flushTimeout, late)
	defer cancel()
	for {
		if len(batch) == 0 {
			batch = r.take()
		}
		if len(batch) == 0 || !r.send(ctx, batch) {
			return
		}
		batch = nil
	}
}

// cut returns the beginning of a text, of at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// wait returns false when ctx ends before the time is over.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
