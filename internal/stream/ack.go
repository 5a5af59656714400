package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// ackPauseMin and ackPauseMax bound the pause before an object is looked at again that no client has reported. In between it is
	// ackPauseGrowth times as long as the object is published already. A report ends it, unless it comes before the pause is recorded.
	ackPauseMin    = 250 * time.Millisecond
	ackPauseMax    = 10 * time.Minute
	ackPauseGrowth = 7
	// ackPauseIncomplete is the first pause while the stream is not complete: no client gets anything before.
	ackPauseIncomplete = time.Minute
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
	var asked store.StreamAcknowledgedParams
	for _, obj := range objs {
		asked.Resources, asked.Keys, asked.Hashes = append(asked.Resources, obj.Resource), append(asked.Keys, obj.Key), append(asked.Hashes, obj.Hash[:])
	}
	return a.settle(ctx, asked, func(places []int) []driver.Outcome {
		publish := make([]driver.Object, len(places))
		for i, place := range places {
			publish[i] = objs[place]
		}
		return a.Publisher.ApplyBatch(ctx, publish)
	})
}

// DeleteBatch is Delete for each object.
func (a *acknowledged) DeleteBatch(ctx context.Context, refs []driver.Ref) []driver.Outcome {
	var asked store.StreamAcknowledgedParams
	for _, ref := range refs {
		asked.Resources, asked.Keys, asked.Hashes = append(asked.Resources, ref.Resource), append(asked.Keys, ref.Key), append(asked.Hashes, []byte{})
	}
	return a.settle(ctx, asked, func(places []int) []driver.Outcome {
		publish := make([]driver.Ref, len(places))
		for i, place := range places {
			publish[i] = refs[place]
		}
		return a.Publisher.DeleteBatch(ctx, publish)
	})
}

// settle looks up which objects are published as is asked, and whether a client has reported them, and publishes the others. A look
// again writes nothing.
func (a *acknowledged) settle(ctx context.Context, asked store.StreamAcknowledgedParams, publish func(places []int) []driver.Outcome) []driver.Outcome {
	outcomes := make([]driver.Outcome, len(asked.Keys))
	known, err := a.known(ctx, asked)
	if err != nil {
		for i := range outcomes {
			outcomes[i] = outcome(err)
		}
		return outcomes
	}
	var places []int
	for i := range outcomes {
		if row, ok := known[i]; ok {
			outcomes[i] = reported(row)
		} else {
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return outcomes
	}
	pause := ackPauseMin
	if !a.complete.Load() {
		pause = ackPauseIncomplete
	}
	for i, done := range publish(places) {
		if done.Verdict == driver.VerdictDone {
			done = driver.Waiting(pause, "no client has reported it")
		}
		outcomes[places[i]] = done
	}
	return outcomes
}

// known returns what is published as is asked, by its place.
func (a *acknowledged) known(ctx context.Context, asked store.StreamAcknowledgedParams) (map[int]store.StreamAcknowledgedRow, error) {
	o := a.owner.Load()
	if o == nil {
		return nil, errUnowned
	}
	asked.TargetID = o.TargetID
	for i := range asked.Keys { // what cannot be stored is not published, and is refused where it is to be
		if driver.Storable(driver.Ref{Resource: asked.Resources[i], Key: asked.Keys[i]}) != nil {
			asked.Resources[i], asked.Keys[i] = "", ""
		}
	}
	rows, err := store.New(o.Pool).StreamAcknowledged(ctx, asked)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	known := make(map[int]store.StreamAcknowledgedRow, len(rows))
	for _, row := range rows {
		known[int(row.Place)-1] = row
	}
	return known, err
}

func reported(row store.StreamAcknowledgedRow) driver.Outcome {
	switch {
	case row.Confirmed:
		return driver.Done()
	case row.Failed:
		return driver.Backoff(errors.New(row.Reason))
	}
	pause := time.Duration(ackPauseGrowth * row.Seconds * float64(time.Second))
	return driver.Waiting(min(max(pause, ackPauseMin), ackPauseMax), row.Reason)
}

// Health returns an error while a client reports the far side, or an object, as not healthy.
func (a *acknowledged) Health(ctx context.Context) error {
	o := a.owner.Load()
	if o == nil {
		return errUnowned
	}
	rows, err := store.New(o.Pool).StreamUnhealthy(ctx, o.TargetID)
	switch {
	case err != nil:
		return fmt.Errorf("read what clients report: %w", database.Explain(err))
	case len(rows) > 0 && rows[0].Resource == "":
		return errors.New(cmp.Or(rows[0].Message, "the client reports the far side as not healthy"))
	case len(rows) > 0 && rows[0].Message != "":
		return fmt.Errorf("%s %s: %s", rows[0].Resource, rows[0].Key, rows[0].Message)
	case len(rows) > 0:
		return fmt.Errorf("the client reports %s %s as not healthy", rows[0].Resource, rows[0].Key)
	}
	return nil
}
