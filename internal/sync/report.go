package sync

import (
	"context"
	"fmt"

	"github.com/pgreconciler/reconciler/internal/store"
)

// report collects the findings that a run leaves as they are; a run that repairs all of them forgets those of the last one.
type report struct {
	r     *Runner
	run   store.SyncNextRow
	byRes map[int32]*store.DriftInsertParams
	left  *keySet // objects that former runs have left as they are, and this one leaves, too; nil: none
	clear bool
}

func newReport(ctx context.Context, r *Runner, run store.SyncNextRow) (*report, error) {
	p := &report{r: r, run: run, byRes: map[int32]*store.DriftInsertParams{}}
	if run.Reason != reasonResource || r.cfg.Mode != ModeReport {
		return p, nil
	}
	// Changes of a resource are applied in any mode; what differed before them is not one of them.
	keys, err := r.queries.DriftUnapplied(ctx, store.DriftUnappliedParams{TargetID: r.cfg.Grant.ID, ResourceID: run.ResourceID})
	if err != nil {
		return nil, fmt.Errorf("read what former syncs have left: %w", err)
	}
	p.left, p.clear = &keySet{}, true
	for _, key := range keys {
		p.left.add(key)
	}
	p.left.sort()
	return p, nil
}

// leaves reports whether a finding is shown, and nothing is done about it. What this owner itself has applied since a takeover is no
// drift: a call of the former owner may have come after.
func (p *report) leaves(f Finding) bool {
	if f.Resource.Removed { // untrack() ordered its deletes
		return false
	}
	if p.left != nil {
		return p.left.has(f.Key)
	}
	return p.run.Mode == ModeReport && (f.Kind != KindCheck || f.Forced)
}

func (p *report) add(ctx context.Context, f Finding) error {
	if p.left != nil {
		return nil // it stands there
	}
	if err := p.clearOnce(ctx); err != nil {
		return err
	}
	batch := p.byRes[f.Resource.ID]
	if batch == nil {
		batch = &store.DriftInsertParams{TargetID: p.r.cfg.Grant.ID, ResourceID: f.Resource.ID, SyncID: p.run.ID}
		p.byRes[f.Resource.ID] = batch
	}
	kind, unapplied := string(f.Kind), true
	switch f.Kind {
	case KindStale, KindCheck:
		kind = string(KindMissing)
	case KindTombstone:
		kind = string(KindStale)
	default:
		unapplied = p.moved() && f.Kind != KindOrphan
	}
	batch.Keys = append(batch.Keys, f.Key)
	batch.Kinds = append(batch.Kinds, kind)
	batch.Unapplied = append(batch.Unapplied, unapplied)
	if len(batch.Keys) < pageRows {
		return nil
	}
	return p.flush(ctx, batch)
}

// moved reports whether the run looks at another place than the ledger was written for: what is not there was never applied there.
func (p *report) moved() bool {
	switch p.run.Reason {
	case reasonStart, reasonTakeover, reasonInterval, reasonResync, reasonResource, reasonWatch:
		return false
	}
	return true
}

func (p *report) flush(ctx context.Context, batch *store.DriftInsertParams) error {
	if len(batch.Keys) == 0 {
		return nil
	}
	if err := p.r.queries.DriftInsert(ctx, *batch); err != nil {
		return fmt.Errorf("record drift: %w", err)
	}
	batch.Keys, batch.Kinds, batch.Unapplied = nil, nil, nil
	return nil
}

func (p *report) clearOnce(ctx context.Context) error {
	if p.clear {
		return nil
	}
	p.clear = true
	if err := p.r.queries.DriftClear(ctx, store.DriftClearParams{TargetID: p.r.cfg.Grant.ID, ResourceID: p.run.ResourceID}); err != nil {
		return fmt.Errorf("forget former drift: %w", err)
	}
	return nil
}

func (p *report) finish(ctx context.Context) error {
	if err := p.clearOnce(ctx); err != nil {
		return err
	}
	for _, batch := range p.byRes {
		if err := p.flush(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}
