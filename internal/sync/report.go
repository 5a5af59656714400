package sync

import (
	"context"
	"fmt"

	"github.com/pgreconciler/reconciler/internal/store"
)

// report collects the findings of a run in report mode; in repair mode it forgets those of the last one.
type report struct {
	r     *Runner
	run   store.SyncNextRow
	byRes map[int32]*store.DriftInsertParams
	clear bool
}

func newReport(r *Runner, run store.SyncNextRow) *report {
	return &report{r: r, run: run, byRes: map[int32]*store.DriftInsertParams{}}
}

func (p *report) add(ctx context.Context, f Finding) error {
	if err := p.clearOnce(ctx); err != nil {
		return err
	}
	batch := p.byRes[f.Resource.ID]
	if batch == nil {
		batch = &store.DriftInsertParams{TargetID: p.r.cfg.Grant.ID, ResourceID: f.Resource.ID, SyncID: p.run.ID}
		p.byRes[f.Resource.ID] = batch
	}
	kind := f.Kind
	switch kind {
	case KindTombstone:
		kind = KindStale
	case KindCheck:
		return nil
	default:
	}
	batch.Keys = append(batch.Keys, f.Key)
	batch.Kinds = append(batch.Kinds, string(kind))
	if len(batch.Keys) < pageRows {
		return nil
	}
	return p.flush(ctx, batch)
}

func (p *report) flush(ctx context.Context, batch *store.DriftInsertParams) error {
	if len(batch.Keys) == 0 {
		return nil
	}
	if err := p.r.queries.DriftInsert(ctx, *batch); err != nil {
		return fmt.Errorf("record drift: %w", err)
	}
	batch.Keys, batch.Kinds = nil, nil
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
