package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"iter"
)

// Ref names one object in one target and carries what a target needs to refuse stale calls.
type Ref struct {
	Target   string // name of the target, as in the config
	Resource string // name of the resource, as given to reconciler.track
	Key      string // key of the row as text; composite keys are joined (see docs/concepts.md)
	Revision int64  // revision of the newest change known when the row was read; 0 for none
	Term     int64  // fencing term of the owner that makes the call; grows with every takeover
	// Memory is what the driver last had remembered of the object (see Outcome.Memory); nil for none. After a crash it may be
	// what was remembered before, or nil though the target has the object.
	Memory []byte
	// Approved: approve() released the removal that the previous call for this spec, or for this delete, returned Unapproved for.
	Approved bool
	// Owner makes the call, and answers what a driver asks; nil: nothing is asked.
	Owner Caller
}

// Caller is the process that makes the calls for a target. Its methods may be called during a call only.
type Caller interface {
	// MayRemove reports whether the target's guard lets so many removals pass, and counts them as deletes if it does. A driver whose
	// Apply removes what the spec no longer names asks once for all of that, before it removes the first, unless Ref.Approved. If it
	// may not, Apply removes none and returns Unapproved.
	MayRemove(n int) bool
	// Wanted returns the spec of another object of the target as its row asks for it now; nil: no row wants it. An error says why this is
	// not known: then nothing may be removed or taken over on the strength of it. The caller names the object.
	Wanted(ctx context.Context, resource, key string) (json.RawMessage, error)
}

// MayRemove asks the owner.
func (r Ref) MayRemove(n int) bool {
	return n == 0 || r.Approved || r.Owner == nil || r.Owner.MayRemove(n)
}

// Claimer is a driver whose objects have parts that may move from one object to another. A part that another object's row wants is not
// removed: the driver lets the other object have it. For that it must know of the other before it removes: the owner claims for each Apply
// when it hands the call out, and hands out what removes parts after what was asked for at the same time.
type Claimer interface {
	// Claim notes which parts an object is to have, and reports whether its Apply removes some. It makes no call.
	Claim(obj Object) (removes bool)
}

// Object is an object that is wanted: its name and its spec.
type Object struct {
	Ref
	// Spec is PostgreSQL's text form of the jsonb spec, byte for byte; never nil. A JSON string means raw text.
	Spec json.RawMessage
	// Hash is HashSpec(Spec).
	Hash Hash
}

// Hash is the first 16 bytes of the SHA-256 of a spec's PostgreSQL text form. The ledger keeps the same value.
type Hash [16]byte

// HashSpec hashes a spec given in PostgreSQL's text form of jsonb.
func HashSpec(spec []byte) Hash {
	sum := sha256.Sum256(spec)
	return Hash(sum[:16])
}

// String returns the hash as 32 hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Driver applies objects to one target. Its methods are called concurrently for different objects. A call whose
// context has ended before the target answered is Backoff with the context's error, wrapped: it says nothing about the target or the
// object. What the target did answer stands, also when the time is up.
type Driver interface {
	// Apply brings the object to its spec.
	Apply(ctx context.Context, obj Object) Outcome
	// Delete makes the object absent. Deleting what is absent is Done.
	Delete(ctx context.Context, ref Ref) Outcome
	// Close releases what the driver holds, after the last call has returned.
	Close(ctx context.Context) error
}

// Listed is one object that a target really has.
type Listed struct {
	Resource string
	Key      string
	// Hashes holds HashSpec of every spec that this content may stand for (raw text and JSON can look
	// alike); the object is in sync when one of them equals the ledger's. Empty means "cannot tell".
	Hashes []Hash
	// Memory, unless nil, decides instead of Hashes: the object is in sync when it equals what is remembered of it.
	Memory []byte
	// Unmarked: a program of the user's named the resource; no mark that this driver left in the target did. Such an object is an orphan
	// only where the target has, or should have, other objects of the resource.
	Unmarked bool
}

// Lister is a driver that can say what its target really has, so that a sync finds drift and orphans.
type Lister interface {
	// List yields every object of these resources in the target, in any order, each once. It may yield objects of other resources, too.
	// An error ends the sequence and makes the whole listing worthless: a sync then deletes nothing on its account.
	List(ctx context.Context, resources []string) iter.Seq2[Listed, error]
}

// Watcher is a driver whose target tells when an object changes that was applied.
type Watcher interface {
	// Watch calls changed for every object that may have changed in the target since it was applied, until ctx ends or the watch
	// fails. It returns why; ErrRestored has a sync requested. Objects that change while no watch runs are a sync's to find. changed does
	// not block, and may be called by several goroutines, also after Watch has returned.
	Watch(ctx context.Context, changed func(resource, key string)) error
}

// PartWatcher is a Watcher whose Watch goes on with the rest when it cannot watch a part of its target.
type PartWatcher interface {
	Watcher
	// Unwatched returns which part the Watch that runs does not watch at the moment, and why; nil: it watches everything.
	Unwatched() error
}

// BatchApplier is a driver for which many objects in one call are cheaper than many calls.
type BatchApplier interface {
	// ApplyBatch is Apply for each object; outcomes are in the order of the objects, one for each.
	ApplyBatch(ctx context.Context, objs []Object) []Outcome
}

// BatchDeleter is a driver for which many deletes in one call are cheaper than many calls.
type BatchDeleter interface {
	// DeleteBatch is Delete for each object; outcomes are in the order of the refs, one for each.
	DeleteBatch(ctx context.Context, refs []Ref) []Outcome
}

// Checker is a driver that can say, cheaply and without changing anything, whether its target answers.
// `doctor` and the circuit breaker's probe use it.
type Checker interface {
	Check(ctx context.Context) error
}

// HealthReporter is a driver that can say whether what it applied works: a driver whose options say how to ask is one,
// the same driver without them is none. An apply asks between one target and the next; it is no reason to stop calling.
type HealthReporter interface {
	// Health returns nil when what was applied is healthy, and otherwise why it is not, or why that is not known.
	Health(ctx context.Context) error
}

// ObjectHealthReporter is a driver that can say of each object whether what was applied works. Its Health, if it is a HealthReporter
// too, is not called: an apply waits for its own objects, and not for the target as a whole.
type ObjectHealthReporter interface {
	// ObjectHealth returns the health of an object as the target has it now. The Ref has the object's memory. An error means that the
	// health is not known, and says why. It is called for different objects at once, also while an Apply of the same object runs.
	ObjectHealth(ctx context.Context, ref Ref) (ObjectHealth, error)
}

// ObjectHealth is the health of one object.
type ObjectHealth struct {
	State HealthState
	// Reason says why the object is not healthy, in at most 1,000 bytes; "" for Healthy.
	Reason string
}

// HealthState is one of Healthy, Progressing and Unhealthy.
type HealthState string

// The states of an object's health.
const (
	Healthy     HealthState = "healthy"     // what was applied works
	Progressing HealthState = "progressing" // not yet; it may become healthy by itself
	Unhealthy   HealthState = "unhealthy"   // it has failed
)

// Starter is a driver that is told when this process begins to own its target, before the first call: again and again, as targets go
// from process to process.
type Starter interface {
	Start(ctx context.Context, home Home)
}

// Troubled is a driver that goes on working after its calls have returned (a reload command), and can say
// that this work fails at the moment. Status and doctor show it; it is no reason to stop calling.
type Troubled interface {
	// Trouble returns what fails, and nil when nothing does.
	Trouble() error
}

// Contested is a driver that lets an object be for a while that others change again each time it is repaired. Its Trouble names one.
type Contested interface {
	Troubled
	// Contested returns how many objects it lets be at the moment, for a metric.
	Contested() int
}
