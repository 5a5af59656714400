package agent

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// healthPage is how many objects the driver is asked about in a row. Of those that are not healthy it is the most within healthSoon, of
// healthy ones within healthEvery.
const healthPage = 100

// objectHealth is what the driver said of each object last: an applied one that is not in ill is healthy.
type objectHealth struct {
	mu      sync.Mutex // guards what follows
	begun   bool
	calls   int // that have changed an object
	ill     map[client.Ref]illness
	routine map[client.Ref]struct{} // healthy ones that are due all the same
	turn    time.Time               // of routine
}

// illness is why an object is not healthy.
type illness struct {
	reason string
	due    time.Time     // when to ask again
	pause  time.Duration // before that; 0: it was not asked since a call has changed it
	call   int           // the number of that
}

func newObjectHealth() *objectHealth {
	return &objectHealth{ill: map[client.Ref]illness{}, routine: map[client.Ref]struct{}{}}
}

// of returns the health of an applied object.
func (h *objectHealth) of(at client.Ref) (healthy *bool, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one, ill := h.ill[at]
	ill = !ill
	return &ill, one.reason
}

// touch notes that a call has changed an object: a rollout must not go on because of what was true before.
func (h *objectHealth) touch(at client.Ref, wanted bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !wanted {
		h.dropLocked(at)
		return
	}
	h.calls++
	h.ill[at] = illness{reason: notAsked, call: h.calls}
}

func (h *objectHealth) drop(at client.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropLocked(at)
}

func (h *objectHealth) dropLocked(at client.Ref) {
	delete(h.ill, at)
	delete(h.routine, at)
}

// begin makes objects due of which nothing is known, as the process has begun.
func (h *objectHealth) begin(objects []client.Ref) {
	h.mu.Lock()
	begun := h.begun
	h.begun = true
	h.mu.Unlock()
	if begun {
		return
	}
	for _, at := range objects {
		h.touch(at, true)
	}
}

// again makes objects due that are healthy so far.
func (h *objectHealth) again(objects []client.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range objects {
		if _, ill := h.ill[at]; !ill {
			h.routine[at] = struct{}{}
		}
	}
}

// take returns what to ask about, and when more is due: 0 if that is not known. urgent: nothing else than what calls have changed.
func (h *objectHealth) take(now time.Time) (page map[client.Ref]illness, urgent bool, next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	page = map[client.Ref]illness{}
	for at, one := range h.ill {
		if one.pause == 0 && len(page) < healthPage {
			page[at] = one
		}
	}
	if urgent = len(page) > 0; urgent {
		return page, urgent, 0
	}
	for at, one := range h.ill {
		switch left := one.due.Sub(now); {
		case left > 0:
			next = earlier(next, left)
		case left <= 0 && len(page) < healthPage:
			page[at] = one
		}
	}
	if left := h.turn.Sub(now); left > 0 && len(h.routine) > 0 {
		return page, false, earlier(next, left)
	}
	routine := 0 // besides the others, however many these are
	for at := range h.routine {
		if routine++; routine > healthPage {
			break
		}
		page[at] = illness{}
		h.turn = now.Add(throttle.Jittered(healthEvery))
	}
	return page, false, next
}

// earlier is the smaller one of two times; 0 is none.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// learn notes an answer, and reports whether it is news. One from before a call does not count.
func (h *objectHealth) learn(at client.Ref, asked illness, reason string, now time.Time) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.routine, at)
	before, ill := h.ill[at]
	switch {
	case before.call != asked.call:
		return false
	case reason == "":
		delete(h.ill, at)
		return ill
	case before.reason == reason:
		before.pause = min(2*before.pause, healthEvery)
	default:
		before.reason, before.pause, news = reason, healthSoon, true
	}
	before.due = now.Add(throttle.Jittered(before.pause))
	h.ill[at] = before
	return news
}

// healthy reports whether every object is.
func (h *objectHealth) healthy() *bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	is := len(h.ill) == 0
	return &is
}

// asksObjects asks a driver for the health of objects: at once for what a call has changed and after a start, again and again for what is not
// healthy, and little by little for all after each listing.
func (s *session) asksObjects(ctx context.Context, reporter driver.ObjectHealthReporter) {
	select {
	case <-ctx.Done():
		return
	case <-s.informer.Synced():
	}
	s.start(ctx)
	s.objects.begin(s.controller.Applied())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		case <-timer.C:
		}
		if s.shutFor() != "" {
			timer.Reset(healthSoon)
			continue
		}
		page, urgent, next := s.objects.take(time.Now())
		s.askPage(ctx, reporter, page)
		switch {
		case urgent:
			timer.Reset(0)
		case len(page) > 0:
			if !wait(ctx, healthSoon) {
				return
			}
			timer.Reset(0)
		case next > 0:
			timer.Reset(next)
		}
	}
}

// checkObjects has every object asked about, where the driver can tell.
func (s *session) checkObjects() {
	if s.objects != nil {
		s.objects.again(s.controller.Applied())
		signal(s.changed)
	}
}

// askPage asks about objects, about as many at once as the target may have calls. What is left after a while is asked the next time.
func (s *session) askPage(ctx context.Context, reporter driver.ObjectHealthReporter, page map[client.Ref]illness) {
	began := time.Now()
	var group errgroup.Group
	group.SetLimit(s.cfg.Concurrency)
	for at, asked := range page {
		if ctx.Err() != nil || time.Since(began) > healthEvery {
			break
		}
		group.Go(func() error {
			s.askObject(ctx, reporter, at, asked)
			return nil
		})
	}
	_ = group.Wait()
}

// askObject asks about one object, and has the answer reported if it is news. What cannot be known is not healthy.
func (s *session) askObject(ctx context.Context, reporter driver.ObjectHealthReporter, at client.Ref, asked illness) {
	if _, wanted := s.informer.Object(at.Resource, at.Key); !wanted {
		s.objects.drop(at)
		return
	}
	callCtx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, &timeoutError{after: s.cfg.Timeout})
	defer cancel()
	var answer driver.ObjectHealth
	err := driver.Safely(func() error {
		memory, err := s.memory.of(at)
		if err != nil {
			return err
		}
		answer, err = reporter.ObjectHealth(callCtx, driver.Ref{
			Target: s.cfg.Name, Resource: at.Resource, Key: at.Key, Term: s.agent.identity.Term, Memory: memory,
		})
		return err //nolint:wrapcheck // it has the driver's words
	})
	if ctx.Err() != nil {
		return
	}
	if s.objects.learn(at, asked, unhealthy(answer, err), time.Now()) {
		s.controller.ReportHealth(at)
	}
}

// unhealthy is why an object is not healthy by an answer of a driver; "": it is.
func unhealthy(answer driver.ObjectHealth, err error) string {
	switch {
	case err != nil:
		return "not known: " + short(err)
	case answer.State == driver.Healthy:
		return ""
	case answer.State == driver.Progressing || answer.State == driver.Unhealthy:
		return cmp.Or(answer.Reason, "the driver gave no reason")
	}
	return fmt.Sprintf("not known: the driver returned the state %q", answer.State)
}
