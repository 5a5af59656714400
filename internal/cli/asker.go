package cli

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/sync"
)

// Asker asks a target what the next call for an object would change.
type Asker struct {
	Driver      driver.Differ
	Timeout     time.Duration // of one question
	Concurrency int           // questions at the same time
}

// AskError is a question that a target did not answer.
type AskError struct {
	Target, Resource, Key string
	Timeout               bool // it did not answer in time
	Err                   error
}

func (e *AskError) Error() string {
	return fmt.Sprintf("what a call for %s/%s would change in target %s is not known: %v", e.Resource, e.Key, e.Target, e.Err)
}

// Unwrap returns the cause.
func (e *AskError) Unwrap() error { return e.Err }

// Ask gives each difference its changes. The first AskError ends it: a target that does not answer would fail all others, too.
func (d *Differ) Ask(ctx context.Context, all []Difference) error {
	group, limited := errgroup.WithContext(ctx)
	group.SetLimit(max(d.Asker.Concurrency, 1))
	for i := range all {
		one := &all[i]
		resource, ok := d.catalog.ByName(one.Resource)
		if !ok || one.Changes != nil || one.Kind == DiffUnreadable || limited.Err() != nil {
			continue
		}
		rows, err := resource.Read(ctx, d.DB, d.Target, d.targetID, []string{one.Key})
		if err != nil {
			_ = group.Wait()
			return err
		}
		group.Go(func() (err error) {
			one.Changes, err = d.ask(limited, one.Resource, rows[0])
			return err
		})
	}
	return group.Wait() //nolint:wrapcheck // an AskError
}

// ask returns what the next call for an object would change: a delete where no running row wants it.
func (d *Differ) ask(parent context.Context, resource string, row desired.Row) (changes []driver.Change, err error) {
	if row.Err != nil {
		return nil, nil
	}
	ref := driver.Ref{Target: d.Target, Resource: resource, Key: row.Key}
	if row.Ledger != nil {
		ref.Revision, ref.Memory = row.Ledger.DesiredRevision, row.Ledger.Memory
	}
	ctx, cancel := context.WithTimeoutCause(parent, d.Asker.Timeout, fmt.Errorf("no answer within %s", d.Asker.Timeout))
	defer cancel()
	err = driver.Safely(func() (err error) {
		if row.Wanted && !d.draining {
			changes, err = d.Asker.Driver.Diff(ctx, driver.Object{Ref: ref, Spec: row.Spec, Hash: row.Hash})
		} else {
			changes, err = d.Asker.Driver.DiffDelete(ctx, ref)
		}
		return err //nolint:wrapcheck // below
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, &AskError{d.Target, resource, row.Key, ctx.Err() != nil && parent.Err() == nil, err}
	}
	return changes, nil
}

// one compares one object by what a call would change: nothing is listed.
func (d *Differ) one(ctx context.Context, resource *desired.Resource) error {
	row, err := d.read(ctx, resource)
	if err != nil {
		return err
	}
	if row.Ledger != nil && row.Ledger.State != desired.Applied {
		return d.listUnsettled(ctx)
	}
	changes, err := d.ask(ctx, resource.Name, row)
	if err != nil {
		return err
	}
	kinds := []sync.Kind{sync.KindStale, sync.KindTombstone}
	if len(changes) > 0 {
		kinds = append(kinds, sync.KindDifferent, sync.KindOrphan)
	}
	for _, kind := range kinds {
		if kind, reason := judge(kind, row, d.draining); kind != "" {
			return d.tell(Difference{d.Target, resource.Name, *d.Key, kind, reason, changes})
		}
	}
	return d.known(row)
}

func (d *Differ) read(ctx context.Context, resource *desired.Resource) (desired.Row, error) {
	rows, err := resource.Read(ctx, d.DB, d.Target, d.targetID, []string{*d.Key})
	if err != nil {
		return desired.Row{}, err
	}
	return rows[0], nil
}

// known returns an error for an object that neither a row nor the ledger knows.
func (d *Differ) known(row desired.Row) error {
	if row.Wanted || row.Err != nil || row.Ledger != nil {
		return nil
	}
	return Usage(fmt.Sprintf("target %s has no object %q of resource %s", d.Target, row.Key, d.Resource),
		fmt.Sprintf("What is known of it: reconciler explain -- %s %s %s", d.Target, d.Resource, row.Key))
}
