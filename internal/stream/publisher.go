package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// listPageRows is how many objects of a listing are in memory at once.
const listPageRows = 1000

// Owner is the ownership of a target under which a Publisher writes.
type Owner struct {
	Pool     *pgxpool.Pool
	TargetID int32
	Instance string
	Term     int64
	// Published is called after each transaction that has changed something; watched: other processes have watchers.
	Published func(watched bool)
}

// Publisher is the driver of one stream target. Before Own, each call fails.
type Publisher struct {
	history  time.Duration // for which tombstones are kept
	ack      bool          // objects are done when a client has reported them
	owner    atomic.Pointer[Owner]
	complete atomic.Bool // a full sync has published everything: before that no client gets anything

	mu       sync.Mutex // guards what follows
	waiting  []*call
	flushing bool
	flushes  sync.WaitGroup
}

func (p *Publisher) self() *Publisher { return p }

// Own creates the stream if it is missing, and has later calls write under this ownership.
func (p *Publisher) Own(ctx context.Context, o Owner) error {
	complete, err := store.New(o.Pool).StreamOwn(ctx, store.StreamOwnParams{TargetID: o.TargetID, Owner: o.Instance, Term: o.Term, History: p.history, Ack: p.ack})
	if err != nil {
		return fmt.Errorf("begin to publish: %w", database.Explain(err))
	}
	p.complete.Store(complete)
	p.owner.Store(&o)
	return nil
}

// Complete records that a full sync has published every object.
func (p *Publisher) Complete(ctx context.Context) error {
	o := p.owner.Load()
	if o == nil {
		return errUnowned
	}
	if err := store.New(o.Pool).StreamComplete(ctx, store.StreamCompleteParams{TargetID: o.TargetID, Owner: o.Instance, Term: o.Term}); err != nil {
		return fmt.Errorf("record that the stream is complete: %w", database.Explain(err))
	}
	p.complete.Store(true)
	return nil
}

var errUnowned = errors.New("this process does not own the stream, or not under this term")

// Apply publishes the object's spec, unless it is published already.
func (p *Publisher) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	return p.ApplyBatch(ctx, []driver.Object{obj})[0]
}

// Delete publishes a tombstone, unless the object is not published.
func (p *Publisher) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	return p.DeleteBatch(ctx, []driver.Ref{ref})[0]
}

// ApplyBatch is Apply for each object, in one transaction.
func (p *Publisher) ApplyBatch(ctx context.Context, objs []driver.Object) []driver.Outcome {
	outcomes, c := make([]driver.Outcome, len(objs)), newCall(ctx)
	for i, obj := range objs {
		if err := driver.Storable(obj.Ref); err != nil {
			outcomes[i] = driver.Terminal(err)
			continue
		}
		c.add(i, obj.Ref, string(obj.Spec), obj.Hash[:])
	}
	return p.publish(ctx, c, outcomes)
}

// DeleteBatch is Delete for each object, in one transaction.
func (p *Publisher) DeleteBatch(ctx context.Context, refs []driver.Ref) []driver.Outcome {
	outcomes, c := make([]driver.Outcome, len(refs)), newCall(ctx)
	for i, ref := range refs {
		if driver.Storable(ref) == nil { // else no row can have such a name
			c.add(i, ref, "", nil)
		}
	}
	return p.publish(ctx, c, outcomes)
}

// publish waits for the transaction that takes the call's changes, and fills in their outcomes.
func (p *Publisher) publish(ctx context.Context, c *call, outcomes []driver.Outcome) []driver.Outcome {
	if len(c.places) == 0 {
		return outcomes
	}
	outcome := p.wait(ctx, c)
	for _, place := range c.places {
		outcomes[place] = outcome
	}
	return outcomes
}

func (p *Publisher) wait(ctx context.Context, c *call) driver.Outcome {
	if ctx.Err() != nil {
		return driver.Backoff(context.Cause(ctx))
	}
	p.enqueue(c)
	select {
	case err := <-c.done:
		return outcome(err)
	case <-ctx.Done():
		// The transaction may go through all the same. What comes later for these objects waits for it.
		return driver.Backoff(context.Cause(ctx))
	}
}

func outcome(err error) driver.Outcome {
	switch {
	case err == nil:
		return driver.Done()
	case database.IsUnavailable(err):
		return driver.Unreachable(err)
	default:
		return driver.Backoff(database.Explain(err))
	}
}

// List yields what is published of each resource in the order of keys, page by page.
func (p *Publisher) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	if o := p.owner.Load(); o != nil {
		return published{store.New(o.Pool), o.TargetID, p.ack}.List(ctx, resources)
	}
	return func(yield func(driver.Listed, error) bool) { yield(driver.Listed{}, errUnowned) }
}

// Lister lists what is published of a target, for programs that do not own its stream. A target that is not known has nothing.
func Lister(db store.DBTX, targetID int32) driver.Lister {
	return published{store.New(db), targetID, false}
}

type published struct {
	queries  *store.Queries
	targetID int32
	acked    bool // what no client has reported since a restore is another content than the ledger's
}

func (p published) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return driver.EachResource(resources, func(resource string) iter.Seq2[driver.Listed, error] { return p.list(ctx, resource) })
}

func (p published) list(ctx context.Context, resource string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		if driver.Storable(driver.Ref{Resource: resource}) != nil {
			return // no row can have the name
		}
		params := store.PublishedPageParams{TargetID: p.targetID, Resource: resource, Acked: p.acked, PageRows: listPageRows}
		for {
			rows, err := p.queries.PublishedPage(ctx, params)
			if err != nil {
				yield(driver.Listed{}, fmt.Errorf("list what is published of %q: %w", resource, database.Explain(err)))
				return
			}
			for _, row := range rows {
				hash := driver.Hash(row.Hash)
				if row.Unreported {
					hash = driver.Hash{}
				}
				if !yield(driver.Listed{Resource: resource, Key: row.Key, Hashes: []driver.Hash{hash}}, nil) {
					return
				}
			}
			if len(rows) < listPageRows {
				return
			}
			params.After = rows[len(rows)-1].Key + "\x01" // the next text: those of PostgreSQL hold no NUL
		}
	}
}

// Check reports whether the database answers.
func (p *Publisher) Check(ctx context.Context) error {
	o := p.owner.Load()
	if o == nil {
		return nil // `reconciler doctor` looks at the database itself
	}
	if err := o.Pool.Ping(ctx); err != nil {
		return database.Explain(err)
	}
	return nil
}

// Close waits for the transaction in flight.
func (p *Publisher) Close(context.Context) error {
	p.flushes.Wait()
	return nil
}
