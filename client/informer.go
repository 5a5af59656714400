package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// InformerOptions are what an Informer follows. Zero is every object of the target, in memory.
type InformerOptions struct {
	Resources []string // these only, all of which the token must be allowed to read; nil: all that it may read
	Prefix    string   // keys that begin with it; it needs exactly one resource
	Store     *Store   // keeps the objects on disk, so that a restart needs no server; nil: none

	// WriteAhead has no handler begin for a new or changed object before the store has it. So the store has every object that a handler was
	// called for until its delete was made, and none that is older than what a handler has seen, also after a crash. Until an object is
	// written, Get and Object return the one before. While the store cannot be written, what has changed waits. It needs Store.
	WriteAhead bool
	// SameStream has Run return ErrStream when the server has another stream than the one that the objects are of, instead of following it.
	SameStream bool
}

// Informer keeps the objects of a target in memory, and has controllers look at what changes.
//
// One stream brings all resources, so that one end of a snapshot completes all of them. A reset is compared with what is there: what
// has not changed is no change, and what has vanished is a delete with the object as it was.
type Informer struct {
	client *Client
	target string
	opts   InformerOptions
	synced chan struct{} // closed when the objects are complete for the first time
	kick   chan struct{} // wakes the saver, size one
	hurry  chan struct{} // has the saver not rest, size one

	// Of the snapshot that is under way; only Run's goroutine uses them.
	anew   bool // controllers look at everything after it
	rights bool // it came because of other rights

	// Wiring: complete before Run, only read afterwards.
	indexes     map[string][]*index
	mappers     map[string][]mapper
	controllers map[string]*Controller
	problems    []error

	// Only Run's goroutine adds to the cache, removes and changes objects; others note results.
	mu         sync.RWMutex // guards what follows
	cache      *cache
	begun      bool
	primed     bool             // the objects were complete once
	snapshot   bool             // one is under way
	confirmed  bool             // the server has brought the objects up to date since Run began
	before     map[Ref]entry    // what objects were before the snapshot that is under way changed them
	tombstones map[Ref]deleted  // of resources with a controller, until it has handled them
	kept       map[Ref]struct{} // what the snapshot named without a spec: the far side keeps what it has
	bookmark   string
	head       int64 // version up to which the objects are those of the server; 0: not known
	status     Status
	controls   *Controls     // the newest ones; nil: none yet
	epoch      int32         // of the results that count after a restart
	turned     chan struct{} // closed and replaced when Revision moves or Run ends
	ended      error         // why Run has ended

	// What the store does not have yet, and what is being written. Handlers wait for those that are true.
	dirty, writing map[Ref]bool
	// With WriteAhead, what the store has of objects that have changed since. Handlers see that.
	written map[Ref]written
}

// written is an object as the store has it, while there is a newer one.
type written struct {
	entry

	due bool // no handler has begun for it
}

// deleted is what a controller must know about an object that is gone.
type deleted struct {
	version int64 // of the delete, or of the stream when the object was found absent; 0: not known
	absent  bool  // concluded from absence, which the controller's guard counts
	unread  bool  // after a reset because of other rights, which do not prove that the object is gone
	held    bool  // by that guard
}

// NewInformer returns an informer of a target. Get objects, indexes and controllers of it before Run begins.
func NewInformer(c *Client, target string, opts InformerOptions) *Informer {
	opts.Resources = slices.Compact(slices.Sorted(slices.Values(opts.Resources)))
	i := &Informer{
		client: c, target: target, opts: opts, synced: make(chan struct{}), kick: make(chan struct{}, 1), hurry: make(chan struct{}, 1),
		indexes: map[string][]*index{}, mappers: map[string][]mapper{}, controllers: map[string]*Controller{},
		cache: newCache(), before: map[Ref]entry{}, kept: map[Ref]struct{}{}, tombstones: map[Ref]deleted{},
		snapshot: true, epoch: 1, turned: make(chan struct{}), dirty: map[Ref]bool{}, written: map[Ref]written{},
	}
	i.status.Waiting = "Run has not begun"
	if opts.Prefix != "" && len(opts.Resources) != 1 {
		i.problems = append(i.problems, fmt.Errorf("prefix %q needs exactly one resource, not %d", opts.Prefix, len(opts.Resources)))
	}
	if opts.WriteAhead && opts.Store == nil {
		i.problems = append(i.problems, errors.New("WriteAhead needs a Store"))
	}
	return i
}

// Run follows the target until ctx ends, and returns nil then. It returns an error at once if the informer, its objects or its
// controllers are wired wrongly, or if the store cannot be used; and later one that another attempt would not change: see Watch.
// An informer runs once.
func (i *Informer) Run(ctx context.Context) (err error) {
	if err := i.begin(); err != nil {
		return err
	}
	defer func() { i.end(err) }()
	if i.opts.Store == nil {
		return i.follow(ctx)
	}
	if err := i.load(); err != nil {
		return err
	}
	saving, stop := context.WithCancel(context.WithoutCancel(ctx))
	saved := make(chan error, 1)
	go func() { saved <- i.save(saving) }()
	err = i.follow(ctx)
	stop()
	return errors.Join(err, <-saved)
}

func (i *Informer) begin() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.begun {
		return fmt.Errorf("the informer of target %s has begun before: make another one", i.target)
	}
	i.begun, i.status.Waiting = true, "no answer yet"
	return errors.Join(i.problems...)
}

func (i *Informer) end(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = errEnded
	i.status.Waiting = "Run has ended"
	if err != nil {
		i.ended = fmt.Errorf("%w: %w", errEnded, err)
		i.status.Err = err
	}
	i.turn()
}

var errEnded = errors.New("the informer has ended")

// follow takes what the server sends.
func (i *Informer) follow(ctx context.Context) error {
	i.mu.Lock()
	since := i.bookmark
	i.mu.Unlock()
	if since == "" {
		i.restart(resetCut)
	}
	watch := WatchOptions{Resources: i.opts.Resources, Prefix: i.opts.Prefix, Since: since}
	for f, err := range i.client.Watch(ctx, i.target, watch) {
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err == nil && f.Type == Reset && f.Reason == resetUnknown && i.opts.SameStream && i.known():
			err = fmt.Errorf("%w: the server knows nothing of the stream of target %s that the objects are of", ErrStream, i.target)
		}
		if i.opts.Store != nil && (errors.Is(err, ErrInstallation) || errors.Is(err, ErrStream)) {
			err = fmt.Errorf("store %s: %w", i.opts.Store.path, err)
		}
		if err != nil {
			return err
		}
		i.take(ctx, f)
	}
	return nil
}

// known reports whether the objects were complete once.
func (i *Informer) known() bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.primed
}

// controller returns the one of a resource, or nil.
func (i *Informer) controller(resource string) *Controller {
	if c := i.controllers[resource]; c != nil {
		return c
	}
	return i.controllers[everyResource]
}

// take does what a frame asks for.
func (i *Informer) take(ctx context.Context, f Frame) {
	r := Ref{i.intern(f.Resource), f.Key}
	switch f.Type {
	case Upsert:
		i.upsert(r, f)
	case Delete:
		i.remove(r, f.Version)
	case Keep:
		i.name(r)
	case Reset:
		i.restart(f.Reason)
	case EndOfSnapshot:
		i.complete(ctx, f)
	case Checkpoint:
		i.checkpoint(f)
	default:
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case f.Type == Waiting:
		i.status.Waiting = f.Reason
	case i.snapshot:
		i.status.Waiting = "a snapshot is under way"
	default:
		i.status.Waiting = ""
	}
	i.status.LastFrame = time.Now()
}

// intern returns the one copy of a resource's name that the cache keeps.
func (i *Informer) intern(resource string) string {
	for name := range i.cache.objects {
		if name == resource {
			return name
		}
	}
	return resource
}

// entry returns what the cache has of an object.
func (i *Informer) entry(r Ref) entry {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.cache.get(r)
}

// seen returns what handlers see of an object. It needs mu.
func (i *Informer) seen(r Ref) entry {
	if w, ok := i.written[r]; ok {
		return w.entry
	}
	return i.cache.get(r)
}

func (i *Informer) upsert(r Ref, f Frame) {
	if len(f.Spec) == 0 {
		i.client.log.Error("object_without_spec", "target", i.target, "resource", r.Resource, "key", r.Key)
		i.name(r)
		return
	}
	old := i.entry(r)
	if !i.cache.fresh(old, f.Version) {
		return
	}
	spec := old.spec
	if spec != string(f.Spec) {
		spec = string(f.Spec)
	}
	i.change(r, old, entry{spec: spec, version: f.Version, round: i.cache.round}, nil)
}

func (i *Informer) remove(r Ref, version int64) {
	old := i.entry(r)
	if i.cache.fresh(old, version) {
		i.change(r, old, entry{}, &deleted{version: version})
	}
}

// name notes that an object exists, which has no version that counts in this round.
func (i *Informer) name(r Ref) {
	i.mu.Lock()
	defer i.mu.Unlock()
	old := i.cache.get(r)
	if old.spec == "" {
		i.kept[r] = struct{}{}
		i.noteDirty(r, false)
	} else if old.round != i.cache.round {
		i.cache.put(r, entry{spec: old.spec, round: i.cache.round})
	}
}

// change replaces an object, and has controllers look, unless a snapshot is under way.
func (i *Informer) change(r Ref, old, now entry, gone *deleted) {
	updates := i.indexed(r, old.spec, now.spec) // before mu: the functions are the user's
	i.mu.Lock()
	e := i.cache.get(r)
	same := now.spec != "" && e.spec == now.spec && e.version == now.version // named again after a reset
	if same {
		now.applied = e.applied
	}
	i.cache.put(r, now)
	for _, u := range updates {
		u.apply(r.Key)
	}
	i.bury(r, gone)
	delete(i.kept, r)
	if !same {
		i.noteDirty(r, true)
		if _, ok := i.written[r]; i.opts.WriteAhead && i.primed && !ok {
			i.written[r] = written{entry: e}
		}
	}
	snapshot := i.snapshot
	if _, noted := i.before[r]; snapshot && i.primed && !noted {
		i.before[r] = old
	}
	i.mu.Unlock()
	if !snapshot {
		i.deliver(r, old.spec, now.spec)
	}
}

// bury notes or, without gone, forgets the delete of an object.
func (i *Informer) bury(r Ref, gone *deleted) {
	switch {
	case i.controller(r.Resource) == nil:
	case gone == nil:
		delete(i.tombstones, r)
	default:
		i.tombstones[r] = *gone
	}
}

// deliver has controllers look at a change.
func (i *Informer) deliver(r Ref, old, now string) {
	if c := i.controller(r.Resource); c != nil {
		c.queue.add(r)
	}
	if old == now {
		return
	}
	for _, m := range i.mappers[r.Resource] {
		m(r.Key, old, now)
	}
}
