package client

import "time"

// State is what a client has made of an object.
type State string

// The states of observations.
const (
	StateApplied     State = "applied"     // the object is as its version wants it
	StateProgressing State = "progressing" // it is on its way, and needs no help
	StateFailed      State = "failed"      // it is not
	StateAbsent      State = "absent"      // it does not exist
)

// Result is what a handler has made of an object. One of Applied, Absent, Progressing, Failed and Retry makes it.
type Result struct {
	state  State // "" for Retry
	reason string
	after  time.Duration
	again  bool
}

// Applied is the result for an object that is as the spec wants it.
func Applied() Result { return Result{state: StateApplied} }

// Absent is the result for an object that is wanted no more, and that the far side does not have.
func Absent() Result { return Result{state: StateAbsent} }

// Progressing is the result for an object that is not there yet. The handler looks again after a time; without one, after the back-off.
func Progressing(reason string, after time.Duration) Result {
	return Result{state: StateProgressing, reason: reason, after: after, again: true}
}

// Failed is the result for an object that another attempt would not help. The handler looks again when the object changes, and after
// the next snapshot. For a failure that may pass return an error instead.
func Failed(reason string) Result { return Result{state: StateFailed, reason: reason} }

// Retry has the handler look again after a time, and reports nothing. Without a time it is the back-off.
func Retry(after time.Duration) Result { return Result{after: after, again: true} }

// outcome is what the queue must know of a result.
type outcome struct {
	after   time.Duration // when to run again
	backoff bool          // after the pause that grows with each failure in a row
	failed  bool          // run again at the next end of a snapshot
}

func (r Result) outcome(err error) outcome {
	return outcome{
		after:   r.after,
		backoff: err != nil || r.again && r.after <= 0,
		failed:  r.state == StateFailed,
	}
}
