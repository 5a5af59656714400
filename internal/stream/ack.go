package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// ackPauseMin and ackPauseMax bound the pause before an object is looked at again that no client has reported. In between it is as
	// long as the object is published already, so that pauses double. A report ends them.
	ackPauseMin = 250 * time.Millisecond
	ackPauseMax = 10 * time.Minute
)

// acknowledged is a Publisher with `ack: true`: an object is done when a client has reported its published version.
type acknowledged struct{ *Publisher }

// Apply publishes the object's spec, and waits until a client has reported it applied.
func (a *acknowledged) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	return a.ApplyBatch(ctx, []driver.Object{obj})[0]
}

// Delete publishes a tombstone, and waits until a client has reported the object absent.
func (a *acknowledged) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	return a.DeleteBatch(ctx, []driver.Ref{ref})[0]
}

// ApplyBatch is Apply for each object.
func (a *acknowledged) ApplyBatch(ctx context.Context, objs []driver.Object) []driver.Outcome {
	refs := make([]driver.Ref, len(objs))
	for i, obj := range objs {
		refs[i] = obj.Ref
	}
	return a.confirm(ctx, refs, a.Publisher.ApplyBatch(ctx, objs))
}

// DeleteBatch is Delete for each object.
func (a *acknowledged) DeleteBatch(ctx context.Context, refs []driver.Ref) []driver.Outcome {
	return a.confirm(ctx, refs, a.Publisher.DeleteBatch(ctx, refs))
}

// confirm looks up what clients have reported of the objects that are published, and fills in the outcomes of the others.
func (a *acknowledged) confirm(ctx context.Context, refs []driver.Ref, outcomes []driver.Outcome) []driver.Outcome {
	o := a.owner.Load()
	params := store.StreamUnconfirmedParams{}
	places := make([]int, 0, len(refs))
	for i, ref := range refs {
		if outcomes[i].Verdict == driver.VerdictDone && driver.Storable(ref) == nil {
			places = append(places, i)
			params.Resources, params.Keys = append(params.Resources, ref.Resource), append(params.Keys, ref.Key)
		}
	}
	if len(places) == 0 {
		return outcomes
	}
	params.TargetID = o.TargetID // something was published, so there is an owner
	rows, err := store.New(o.Pool).StreamUnconfirmed(ctx, params)
	if err != nil {
		failed := outcome(err)
		if ctx.Err() != nil {
			failed = driver.Backoff(context.Cause(ctx))
		}
		for _, place := range places {
			outcomes[place] = failed
		}
		return outcomes
	}
	for _, row := range rows {
		outcomes[places[row.Place-1]] = unconfirmed(row)
	}
	return outcomes
}

func unconfirmed(row store.StreamUnconfirmedRow) driver.Outcome {
	if row.Failed {
		return driver.Backoff(errors.New(row.Reason))
	}
	pause := time.Duration(row.Seconds * float64(time.Second))
	return driver.Waiting(min(max(pause, ackPauseMin), ackPauseMax), row.Reason)
}

// Health returns an error while a client reports an object as not healthy.
func (a *acknowledged) Health(ctx context.Context) error {
	o := a.owner.Load()
	if o == nil {
		return errUnowned
	}
	rows, err := store.New(o.Pool).StreamUnhealthy(ctx, o.TargetID)
	switch {
	case err != nil:
		return fmt.Errorf("read what clients report: %w", database.Explain(err))
	case len(rows) > 0 && rows[0].Message != "":
		return fmt.Errorf("%s %s: %s", rows[0].Resource, rows[0].Key, rows[0].Message)
	case len(rows) > 0:
		return fmt.Errorf("the client reports %s %s as not healthy", rows[0].Resource, rows[0].Key)
	}
	return nil
}
