package apply

import (
	"slices"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
)

const (
	// laterAgain is the pause after which tasks are recorded that could not be, because somebody held their apply.
	laterAgain = time.Second
	// lockNotAvailable is the SQLSTATE of a lock that was not to be had in time.
	lockNotAvailable = "55P03"
)

// What a task comes to; values of reconciler.settle_tasks().
const (
	verdictDone    = "done"
	verdictFailed  = "failed"  // for good
	verdictAttempt = "attempt" // it will be tried again, if its operation has attempts left
)

// operation is the one that what is done about the object belongs to; 0: none, or one whose gate is closed.
func (l look) operation() int64 {
	if l.row.Task == nil || !l.row.Task.Open {
		return 0
	}
	return l.row.Task.Operation
}

// verdict says what a look at an object means for the task that governs it: the one that was read with the row, so that
// a task of a later change is not taken for done.
func (l look) verdict(rec *record) (verdict, cause string) {
	if l.row.Task == nil || !l.row.Task.Open {
		return "", ""
	}
	e := l.row.Ledger
	switch {
	case rec != nil && rec.gone, rec == nil && e == nil:
		return verdictDone, ""
	case rec != nil && rec.state == desired.Applied, rec == nil && e.State == desired.Applied:
		return verdictDone, ""
	case rec != nil && rec.state == desired.Blocked:
		return verdictFailed, rec.err
	case rec == nil && e.State == desired.Blocked:
		if e.LastError != nil {
			cause = *e.LastError
		}
		return verdictFailed, cause
	case rec != nil && rec.state == desired.Failing && rec.called:
		return verdictAttempt, rec.err
	}
	return "", ""
}

// spec tells what a look is about from what other looks are about: the hash of the row's spec, nothing for a delete, and something
// else for a row that cannot become an object.
func (l look) spec() []byte {
	switch {
	case l.drain:
	case l.row.Err != nil:
		return []byte{0}
	case l.row.Wanted:
		return l.row.Hash[:]
	}
	return []byte{}
}

// result is an object that was looked at.
type result struct {
	item    *Item
	record  *record // nil: nothing to write
	before  bool    // the ledger said that the target has it
	guarded bool    // the ledger said that the guard holds its delete

	operation int64  // of the task that governed it when it was read; 0: there was none
	verdict   string // what the task comes to; "": nothing yet
	cause     string // why it failed
	spec      []byte // what the verdict is about
}

// later are operations whose tasks are not recorded for a while, because somebody holds their apply: a person, in an open
// transaction. The target goes on without them. Their objects are looked at again then, and found as they should be.
type later struct {
	added chan struct{} // receives a value when there are some

	mu    sync.Mutex
	until map[int64]time.Time
}

// rest takes away the results that are not recorded now.
func (l *later) rest(tasks []result) []result {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(tasks, func(r result) bool {
		_, postponed := l.until[r.operation]
		return postponed
	})
}

func (l *later) add(operations []int64, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until == nil {
		l.until = map[int64]time.Time{}
	}
	for _, operation := range operations {
		l.until[operation] = until
	}
	signal(l.added)
}

// due takes out the operations whose time has come, and says in which time the next one's comes; a negative one: never.
func (l *later) due(now time.Time) (operations []int64, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next = -1
	for operation, until := range l.until {
		wait := until.Sub(now)
		switch {
		case wait <= 0:
			operations = append(operations, operation)
			delete(l.until, operation)
		case next < 0 || wait < next:
			next = wait
		}
	}
	slices.Sort(operations)
	return operations, next
}
