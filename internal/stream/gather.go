package stream

import (
	"context"
	"errors"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// gatherRows and gatherBytes bound what one transaction publishes, beside its first call.
	gatherRows  = 2000
	gatherBytes = 8 << 20
	// flushTimeout bounds a transaction. Calls end by their own time limits before.
	flushTimeout = time.Minute
)

var errSlowPublish = errors.New("the database has not answered within a minute")

// call is the changes of one driver call. Specs that are "" stand for deletes.
type call struct {
	ctx    context.Context //nolint:containedctx // a call that was given up is not published
	done   chan error      // has room for the one result
	places []int           // of each change among the objects of the call
	bytes  int
	term   int64

	resources, keys, specs []string
	revisions              []int64
	hashes                 [][]byte
}

func newCall(ctx context.Context) *call { return &call{ctx: ctx, done: make(chan error, 1)} }

func (c *call) add(place int, ref driver.Ref, spec string, hash []byte) {
	c.places = append(c.places, place)
	c.resources, c.keys = append(c.resources, ref.Resource), append(c.keys, ref.Key)
	c.revisions = append(c.revisions, ref.Revision)
	c.specs, c.hashes = append(c.specs, spec), append(c.hashes, hash)
	c.bytes += len(spec)
	c.term = ref.Term
}

// enqueue adds a call to those that the next transaction takes, and starts flushing unless that is going on.
func (p *Publisher) enqueue(c *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, c)
	if !p.flushing {
		p.flushing = true
		p.flushes.Go(p.flush)
	}
}

// flush publishes the waiting calls, one transaction after the other, so that changes of one object keep their order.
func (p *Publisher) flush() {
	for {
		calls := p.take()
		if len(calls) == 0 {
			return
		}
		err := p.write(calls)
		for _, c := range calls {
			c.done <- err
		}
	}
}

// take returns the calls of the next transaction, and none when flushing has ended.
func (p *Publisher) take() (calls []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows, bytes, taken := 0, 0, 0
	for _, c := range p.waiting {
		if len(calls) > 0 && (c.term != calls[0].term || rows+len(c.places) > gatherRows || bytes+c.bytes > gatherBytes) {
			break
		}
		taken++
		if c.ctx.Err() == nil { // else its caller has returned, and may have called again
			calls, rows, bytes = append(calls, c), rows+len(c.places), bytes+c.bytes
		}
	}
	p.waiting = p.waiting[taken:]
	if len(calls) == 0 {
		p.waiting, p.flushing = nil, false
	}
	return calls
}

func (p *Publisher) write(calls []*call) error {
	o := p.owner.Load()
	if o == nil || o.Term != calls[0].term {
		return errUnowned
	}
	params := store.StreamPublishParams{TargetID: o.TargetID, Owner: o.Instance, Term: o.Term}
	for _, c := range calls {
		params.Resources, params.Keys = append(params.Resources, c.resources...), append(params.Keys, c.keys...)
		params.Revisions = append(params.Revisions, c.revisions...)
		params.Specs, params.Hashes = append(params.Specs, c.specs...), append(params.Hashes, c.hashes...)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), flushTimeout, errSlowPublish)
	defer cancel()
	done, err := store.New(o.Pool).StreamPublish(ctx, params)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil && done.Changed > 0 && o.Published != nil {
		o.Published(done.Watched)
	}
	return err
}
