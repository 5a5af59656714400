package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

// handle makes one object of the target as the stream wants it, with one call of the driver.
func (s *session) handle(ctx context.Context, at client.Ref) (client.Result, error) {
	defer s.rechecks.Ended(at)
	if reason := s.waits(at); reason != "" {
		return unapproved(reason), nil
	}
	if again, ok := s.admit(ctx); !ok {
		return client.Retry(again), nil
	}
	s.start(ctx)
	object, wanted := s.informer.Object(at.Resource, at.Key)
	action := driver.ActionDelete
	if wanted {
		action = driver.ActionApply
	}
	began := time.Now()
	crash.Point(crash.AgentBeforeCall)
	out := s.call(at, object, wanted)
	crash.Point(crash.AgentAfterCall)
	s.metrics.calls.WithLabelValues(s.cfg.Name, string(action), out.Verdict.String()).Inc()
	s.metrics.seconds.WithLabelValues(s.cfg.Name, string(action)).Observe(time.Since(began).Seconds())
	var late *timeoutError
	s.judge(out, errors.As(out.Err, &late))
	s.calls.settle(at, out.Verdict)
	if out.Verdict == driver.VerdictDone { // before the result is reported, which has the health
		s.touched(at, wanted)
	}
	return result(out, wanted)
}

// result is what the controller makes of an outcome.
func result(out driver.Outcome, wanted bool) (client.Result, error) {
	switch out.Verdict {
	case driver.VerdictDone:
		if wanted {
			return client.Applied(), nil
		}
		return client.Absent(), nil
	case driver.VerdictRetryAfter:
		return client.Progressing(short(out.Err), throttle.Spread(out.After)), nil
	case driver.VerdictWaiting:
		return client.Progressing(short(out.Err), out.After), nil
	case driver.VerdictUnapproved:
		return unapproved(short(out.Err)), nil
	case driver.VerdictTerminal:
		return client.Failed(short(out.Err)), nil
	case driver.VerdictUnreachable:
		return client.Retry(shutAgain), nil
	case driver.VerdictBackoff:
	}
	return client.Result{}, errors.New(short(out.Err))
}

// waits returns why no call is made for an object before it is approved; "": calls are made.
func (s *session) waits(at client.Ref) string {
	object, wanted := s.informer.Object(at.Resource, at.Key)
	return s.asked.waits(at, wanted, hashOf(object, wanted))
}

// hashOf is that of what is wanted; zero for a delete.
func hashOf(object client.Object, wanted bool) driver.Hash {
	if !wanted {
		return driver.Hash{}
	}
	return driver.HashSpec(object.Spec)
}

func unapproved(reason string) client.Result {
	return client.Progressing("waits for approval: "+reason, unapprovedAgain)
}

// short is an error without the stack of a panic.
func short(err error) string {
	if p, ok := errors.AsType[*driver.PanicError](err); ok {
		return p.Short()
	}
	return err.Error()
}

var errCallTimeout = errors.New("the call's time is up")

// timeoutError is a call that the target did not answer in time.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string { return fmt.Sprintf("no answer within %s", e.after) }

// call makes the call. A panic is a failed attempt.
func (s *session) call(at client.Ref, object client.Object, wanted bool) (out driver.Outcome) {
	ctx, cancel := context.WithTimeoutCause(s.calling, s.cfg.Timeout, errCallTimeout)
	defer cancel()
	hash := hashOf(object, wanted)
	memory, err := s.memory.of(at)
	if err != nil {
		return driver.Backoff(err)
	}
	ref := driver.Ref{
		Target: s.cfg.Name, Resource: at.Resource, Key: at.Key, Memory: memory,
		Revision: s.calls.revision(at, attempt{hash: hash, wanted: wanted}), Term: s.agent.identity.Term,
		Approved: s.asked.approved(at, wanted, hash), Owner: s,
	}
	err = driver.Safely(func() error {
		if wanted {
			out = s.drv.Apply(ctx, driver.Object{Ref: ref, Spec: object.Spec, Hash: hash})
		} else {
			out = s.drv.Delete(ctx, ref)
		}
		return nil
	})
	switch {
	case err != nil:
		s.log.Error("driver_panicked", "error", err)
		return driver.Backoff(err)
	case errors.Is(context.Cause(ctx), errCallTimeout) && (errors.Is(out.Err, errCallTimeout) || errors.Is(out.Err, context.DeadlineExceeded)):
		// What the target did answer stands, however late that was.
		out = driver.Backoff(&timeoutError{after: s.cfg.Timeout}).Remember(out.Memory)
	}
	return s.asked.settle(at, wanted, hash, s.memory.settle(at, memory, out.Bounded(), wanted))
}

// calls numbers what is asked of the driver. Versions of a stream may go back, after a restore of the database for example, and deletes
// have none of their own. So Revision counts within the term instead, which each start of the agent raises: for one object a greater
// one is always the later wish, and an attempt that is repeated has the same one.
type calls struct {
	mu   sync.Mutex // guards what follows
	last int64
	open map[client.Ref]attempt // of objects whose newest call is under way, or was not done
}

// attempt is what was asked for an object.
type attempt struct {
	hash     driver.Hash
	wanted   bool
	revision int64
	waits    bool // for the target, without a failure
}

// revision returns the number of an attempt.
func (c *calls) revision(at client.Ref, now attempt) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.open[at]; ok && before.hash == now.hash && before.wanted == now.wanted {
		return before.revision
	}
	c.last++
	now.revision = c.last
	c.open[at] = now
	return now.revision
}

// made returns how many attempts there were.
func (c *calls) made() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// settle notes the verdict of a call.
func (c *calls) settle(at client.Ref, verdict driver.Verdict) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if verdict == driver.VerdictDone {
		delete(c.open, at)
		return
	}
	now := c.open[at]
	now.waits = verdict == driver.VerdictRetryAfter || verdict == driver.VerdictWaiting
	c.open[at] = now
}

// waiting returns how many objects the target has taken, or asked to be called for later.
func (c *calls) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, a := range c.open {
		if a.waits {
			n++
		}
	}
	return n
}
