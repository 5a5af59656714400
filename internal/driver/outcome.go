package driver

import (
	"errors"
	"fmt"
	"time"
)

// Verdict is the class of an Outcome.
type Verdict int

// The verdicts of a call.
const (
	// VerdictDone: the target now has (or no longer has) the object.
	VerdictDone Verdict = iota
	// VerdictBackoff: try again, later each time.
	VerdictBackoff
	// VerdictRetryAfter: try again after the time that the target named.
	VerdictRetryAfter
	// VerdictTerminal: trying again cannot help; wait for a new spec or for retry().
	VerdictTerminal
	// VerdictUnreachable: the target as a whole does not answer; says nothing about the object.
	VerdictUnreachable
	// VerdictWaiting: the target has taken the call, and has not confirmed the result yet.
	VerdictWaiting
	// VerdictUnapproved: the call would remove something that needs approval; wait for approve().
	VerdictUnapproved
)

// String returns the verdict as used in logs and metrics.
func (v Verdict) String() string {
	switch v {
	case VerdictDone:
		return "done"
	case VerdictBackoff:
		return "backoff"
	case VerdictRetryAfter:
		return "retry_after"
	case VerdictTerminal:
		return "terminal"
	case VerdictUnreachable:
		return "unreachable"
	case VerdictWaiting:
		return "waiting"
	case VerdictUnapproved:
		return "unapproved"
	default:
		return fmt.Sprintf("verdict(%d)", int(v))
	}
}

// Outcome is what came of a call. The zero value is Done. It is a type and not an error, so that a
// driver has to say what should happen next.
type Outcome struct {
	Verdict Verdict
	After   time.Duration // VerdictRetryAfter and VerdictWaiting only
	Err     error         // nil for VerdictDone, never nil otherwise; its text reaches the ledger
	// Whole: the target asks for no calls at all until After is over, not only for none for this object. VerdictRetryAfter only.
	Whole bool
	// Memory is to be remembered of the object, at most MemoryMost bytes, and comes back in the Ref of its later calls until it is
	// deleted. Nil keeps what is remembered. Any verdict may have one. Put no secrets into it: the ledger keeps it as it is.
	Memory []byte
}

// MemoryMost is how many bytes an Outcome may have remembered of an object. With more the call counts as Terminal.
const MemoryMost = 64 << 10

var errUnspecified = errors.New("the driver gave no reason")

// Done says that the target is as asked.
func Done() Outcome { return Outcome{} }

// Backoff asks for another try after an exponentially growing pause.
func Backoff(err error) Outcome { return failed(VerdictBackoff, err) }

// RetryAfterMax is the longest pause that a target may ask for: a mistake there must not stop an object for days.
const RetryAfterMax = time.Hour

// RetryAfter asks for another try after a pause that the target named, at most RetryAfterMax.
func RetryAfter(after time.Duration, err error) Outcome {
	o := failed(VerdictRetryAfter, err)
	o.After = min(max(after, 0), RetryAfterMax)
	return o
}

// SlowDown is RetryAfter of a target that is called too often: it is not called for any object until then.
func SlowDown(after time.Duration, err error) Outcome {
	o := RetryAfter(after, err)
	o.Whole = true
	return o
}

// Terminal says that another try with the same spec cannot succeed.
func Terminal(err error) Outcome { return failed(VerdictTerminal, err) }

// Unreachable says that the target as a whole does not answer: it opens the target's circuit breaker.
func Unreachable(err error) Outcome { return failed(VerdictUnreachable, err) }

// Waiting says that the target has taken the call and will confirm the result later. The object stays pending with the reason:
// no attempt is charged, nothing fails, and the same call is made again after the pause, or earlier if something makes the object
// due. A driver that waits for longer names longer pauses.
func Waiting(after time.Duration, reason string) Outcome {
	o := failed(VerdictWaiting, errors.New(reason))
	o.After = max(after, 0)
	return o
}

// Unapproved returns an outcome for a call that would remove something which needs approval, and has left that in
// place. The object is held with the reason. After approve() the call is made again, with Ref.Approved; a call for another spec
// asks anew. A Delete removes nothing of the object before it answers so, or only what needs no approval.
func Unapproved(err error) Outcome { return failed(VerdictUnapproved, err) }

// Remember returns the outcome with what is to be remembered of the object; nil keeps what is.
func (o Outcome) Remember(memory []byte) Outcome {
	o.Memory = memory
	return o
}

// Bounded returns the outcome, and Terminal instead if its Memory has more than MemoryMost bytes. Callers of drivers apply it.
func (o Outcome) Bounded() Outcome {
	if len(o.Memory) <= MemoryMost {
		return o
	}
	return Terminal(fmt.Errorf("the driver is to remember %d bytes for the object, and the most is %d", len(o.Memory), MemoryMost))
}

func failed(v Verdict, err error) Outcome {
	if err == nil {
		err = errUnspecified
	}
	return Outcome{Verdict: v, Err: err}
}
