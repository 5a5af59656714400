package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/stream"
	"github.com/pgreconciler/reconciler/internal/sync"
)

// lookRows is how many differing objects are looked at in one statement.
const lookRows = 500

// Kinds of Difference beside the states of the ledger (pending, failing, blocked, held) for what is on its way or stuck.
const (
	DiffMissing    = "missing"    // wanted, not in the target
	DiffDifferent  = "different"  // wanted, in the target with another content
	DiffOrphan     = "orphan"     // in the target, known to nobody
	DiffStale      = "stale"      // in the target, no longer wanted
	DiffUnreadable = "unreadable" // its row cannot be evaluated
)

// Difference is one object that a target does not have as its row asks for.
type Difference struct {
	Target   string `json:"target"`
	Resource string `json:"resource"`
	Key      string `json:"key"`
	Kind     string `json:"kind"`
	Reason   string `json:"reason"`
}

// Differ compares the rows of every resource with the ledger, and the ledger with what a target says it has. It changes nothing.
type Differ struct {
	DB     *pgx.Conn
	Target string
	Lister driver.Lister // nil: the target cannot say what it has
	Found  func(Difference) error

	targetID int32
	draining bool
	resource *desired.Resource
	waiting  []sync.Finding
}

const diffTargetSQL = `SELECT id, draining FROM reconciler.targets WHERE name = $1`

// Applied rows are the scan's; what is on its way or stuck is known to differ.
const diffUnsettledSQL = `SELECT r.name, l.key, l.state::text, reconciler.reason(l, t, r.name)
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE l.target_id = $1 AND l.state <> 'applied' ORDER BY r.name, l.key`

// Run calls Found for every difference and returns how many running rows it compared.
func (d *Differ) Run(ctx context.Context) (rows int64, err error) {
	err = d.DB.QueryRow(ctx, diffTargetSQL, d.Target).Scan(&d.targetID, &d.draining)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // no process ever had this target: nothing was applied there
		return 0, fmt.Errorf("look for target %s: %w", d.Target, err)
	}
	if _, ok := stream.Of(d.Lister); ok { // a running process owns the stream
		d.Lister = stream.Lister(d.DB, d.targetID)
	}
	catalog := &desired.Catalog{}
	if _, err := catalog.Reload(ctx, d.DB); err != nil {
		return 0, err
	}
	scan := &sync.Scan{
		DB: d.DB, Target: d.Target, TargetID: d.targetID, Lister: d.Lister, Drain: d.draining,
		Found: d.found, Page: func(context.Context, sync.Progress) error { return nil },
	}
	progress, unread, err := scan.Run(ctx, catalog.All())
	if err != nil {
		return progress.Rows, err
	}
	if err := d.look(ctx); err != nil {
		return progress.Rows, err
	}
	errs := []error{d.listUnsettled(ctx)}
	for _, one := range unread {
		errs = append(errs, one.Err)
	}
	return progress.Rows, errors.Join(errs...)
}

// found collects findings of one resource, to look at many of them at once.
func (d *Differ) found(ctx context.Context, f sync.Finding) error {
	if d.resource != f.Resource || len(d.waiting) == lookRows {
		if err := d.look(ctx); err != nil {
			return err
		}
		d.resource = f.Resource
	}
	d.waiting = append(d.waiting, f)
	return nil
}

// look reads the rows of what was found: a scan names too much where a row cannot be evaluated, and rows go on changing.
func (d *Differ) look(ctx context.Context) error {
	if len(d.waiting) == 0 {
		return nil
	}
	keys := make([]string, len(d.waiting))
	for i, f := range d.waiting {
		keys[i] = f.Key
	}
	rows, err := d.resource.Read(ctx, d.DB, d.Target, d.targetID, keys)
	if err != nil {
		return err
	}
	for i, f := range d.waiting {
		kind, reason := judge(f.Kind, rows[i], d.draining)
		if kind == "" {
			continue
		}
		if err := d.Found(Difference{d.Target, d.resource.Name, f.Key, kind, reason}); err != nil {
			return err
		}
	}
	d.waiting = d.waiting[:0]
	return nil
}

// judge says how an object differs now; "" when it does not, when it is listed as unsettled, or when another finding
// about the same object says it: what rows and ledger disagree on is told by them, and not by the listing too.
func judge(found sync.Kind, row desired.Row, draining bool) (kind, reason string) {
	wanted := row.Wanted && !draining
	switch {
	case row.Ledger != nil && row.Ledger.State != desired.Applied:
		return "", ""
	case row.Err != nil:
		return DiffUnreadable, row.Err.Error()
	case row.Ledger == nil:
		return judgeUnknown(found, wanted)
	}
	unchanged := wanted && bytes.Equal(row.Ledger.AppliedHash, row.Hash[:])
	switch {
	case found == sync.KindMissing && unchanged:
		return DiffMissing, "was applied, and is gone from the target"
	case found == sync.KindDifferent && unchanged:
		return DiffDifferent, "was changed in the target"
	case found == sync.KindTombstone && !wanted:
		return DiffStale, "is in the target, and no running row wants it"
	case found == sync.KindStale && wanted && !unchanged:
		return DiffDifferent, "its row changed after it was applied"
	}
	return "", ""
}

// judgeUnknown is judge for an object that the ledger does not know.
func judgeUnknown(found sync.Kind, wanted bool) (kind, reason string) {
	switch {
	case found == sync.KindOrphan && !wanted:
		return DiffOrphan, "is in the target, and neither a row nor the ledger knows it"
	case found != sync.KindOrphan && wanted:
		return DiffMissing, "a running row wants it, and it was not applied yet"
	}
	return "", ""
}

func (d *Differ) listUnsettled(ctx context.Context) error {
	rows, err := d.DB.Query(ctx, diffUnsettledSQL, d.targetID)
	if err != nil {
		return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
	}
	defer rows.Close()
	for rows.Next() {
		one := Difference{Target: d.Target}
		if err := rows.Scan(&one.Resource, &one.Key, &one.Kind, &one.Reason); err != nil {
			return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
		}
		if err := d.Found(one); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
	}
	return nil
}
