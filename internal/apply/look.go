package apply

import (
	"context"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// steering is what a person has ordered for the whole target.
type steering struct{ paused, drain bool }

func (o *Owner) steering() steering {
	return steering{paused: o.paused.Load(), drain: o.draining.Load()}
}

// readItems reads objects in order to call for them; those that the ledger does not know are recorded in the same statement,
// unless none may be called for. What no event tells of is flushed: a crash of the server would leave no trace of the call.
// The records are open until handedOut.
func (o *Owner) readItems(ctx context.Context, r *desired.Resource, items []*Item, keys []string, now steering) ([]desired.Row, error) {
	if now.paused || now.drain {
		return r.ReadKnowing(ctx, o.rows, o.cfg.Name, o.cfg.Grant.ID, keys, o.Gates()) //nolint:wrapcheck // by the caller
	}
	by := desired.Caller{Owner: o.cfg.Instance, Term: o.cfg.Grant.Term, Gates: o.Gates(), Recorded: o.firsts.recorded}
	by.Flush = slices.ContainsFunc(items, func(it *Item) bool { return len(it.pages) == 0 })
	return r.ReadToCall(ctx, o.rows, o.cfg.Name, o.cfg.Grant.ID, keys, by) //nolint:wrapcheck // by the caller
}

// looks are made from what was read, but for objects whose applies are not open. Before the first of them has a result, each
// is on its record: a record ends with the last result of its objects, and with that goes from the database.
func (o *Owner) looks(r *desired.Resource, items []*Item, rows []desired.Row, now int64, at steering) (looks []look, unopened []*Item) {
	defer o.firsts.handedOut()
	looks = make([]look, 0, len(items))
	for i, it := range items {
		if rows[i].Unopened {
			unopened = append(unopened, it)
			continue
		}
		looks = append(looks, o.look(r, it, rows[i], now, at))
	}
	return looks, unopened
}

// look is made from what was read. What has a record of its first call is not in the target before that begins: should it not
// be wanted any more by then, there is nothing to delete. Once it has begun the target may have it, whatever the ledger says.
func (o *Owner) look(r *desired.Resource, it *Item, row desired.Row, now int64, at steering) look {
	if len(it.firsts) > 0 {
		row.Ledger = recorded(row.Ledger, !it.uncalled)
	} else {
		it.uncalled = row.First != 0
	}
	o.firsts.takes(it, row.First)
	return look{
		resource: r, item: it, row: row, paused: at.paused, drain: at.drain, park: it.park, guard: o.guard.take, now: now, readAt: time.Now(),
	}
}
