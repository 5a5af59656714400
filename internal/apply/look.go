package apply

import (
	"context"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// readItems reads objects in order to call for them; those that the ledger does not know are recorded in the same statement,
// unless none may be called for. What no event tells of is flushed: a crash of the server would leave no trace of the call.
// The records are open until handedOut.
func (d *dispatcher) readItems(ctx context.Context, r *desired.Resource, items []*Item, keys []string, now steering, most int64) ([]desired.Row, error) {
	if now.paused || now.drain {
		return r.ReadKnowing(ctx, d.rows, d.cfg.Name, d.cfg.Grant.ID, keys, d.orders.known(), most) //nolint:wrapcheck // by the caller
	}
	by := desired.Caller{Owner: d.cfg.Instance, Term: d.cfg.Grant.Term, Gates: d.orders.known(), Most: most, Recorded: d.firsts.recorded}
	by.Flush = slices.ContainsFunc(items, func(it *Item) bool { return len(it.Payload.pages) == 0 })
	return r.ReadToCall(ctx, d.rows, d.cfg.Name, d.cfg.Grant.ID, keys, by) //nolint:wrapcheck // by the caller
}

// looks are made from what was read, but for objects whose applies are not open. Before the first of them has a result, each
// is on its record: a record ends with the last result of its objects, and with that goes from the database.
func (d *dispatcher) looks(r *desired.Resource, items []*Item, rows []desired.Row, now int64, at steering) (looks []look, unopened []*Item) {
	defer d.firsts.handedOut()
	looks = make([]look, 0, len(items))
	for i, it := range items {
		if rows[i].Unopened {
			unopened = append(unopened, it)
			continue
		}
		looks = append(looks, d.look(r, it, rows[i], now, at))
	}
	return looks, unopened
}

// look is made from what was read. What has a record of its first call is not in the target before that begins: should it not
// be wanted any more by then, there is nothing to delete. Once it has begun the target may have it, whatever the ledger says.
func (d *dispatcher) look(r *desired.Resource, it *Item, row desired.Row, now int64, at steering) look {
	if len(it.Payload.firsts) > 0 {
		row.Ledger = recorded(row.Ledger, !it.Payload.uncalled)
	} else {
		it.Payload.uncalled = row.First != 0
	}
	d.firsts.takes(it, row.First)
	return look{
		resource: r, item: it, row: row, paused: at.paused, drain: at.drain, park: it.Payload.park, guard: d.takeDelete, now: now, readAt: time.Now(),
	}
}
