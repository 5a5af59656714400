package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

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
	// Changes are what the next call would change in the target, where its driver can tell.
	Changes []driver.Change `json:"changes,omitempty"`
}

// Differ compares the rows of every resource with the ledger, and the ledger with what a target says it has. It changes nothing.
type Differ struct {
	DB       *pgx.Conn
	Target   string
	Resource string        // the only one that is compared; "": all
	Key      *string       // of the only object of the resource that is compared; nil: all
	Lister   driver.Lister // nil: the target cannot say what it has
	Asker    *Asker        // nil: the target cannot say what a call would change
	Found    func(Difference) error

	targetID int32
	draining bool
	catalog  desired.Catalog
	resource *desired.Resource
	waiting  []sync.Finding
	any      bool // Found was called
}

const diffTargetSQL = `SELECT id, draining FROM reconciler.targets WHERE name = $1`

// Applied rows are the scan's; what is on its way or stuck is known to differ.
const diffUnsettledSQL = `SELECT r.name, l.key, l.state::text, reconciler.reason(l, t, r.name)
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE l.target_id = $1 AND l.state <> 'applied' AND $2 IN ('', r.name) AND coalesce(l.key = $3, true) ORDER BY r.name, l.key`

// Run calls Found for every difference and returns how many running rows it compared.
func (d *Differ) Run(ctx context.Context) (rows int64, err error) {
	err = d.DB.QueryRow(ctx, diffTargetSQL, d.Target).Scan(&d.targetID, &d.draining)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // no process ever had this target: nothing was applied there
		return 0, fmt.Errorf("look for target %s: %w", d.Target, err)
	}
	if _, ok := stream.Of(d.Lister); ok { // a running process owns the stream
		d.Lister = stream.Lister(d.DB, d.targetID)
	}
	resources, err := d.resources(ctx)
	if err != nil {
		return 0, err
	}
	if d.Key != nil && d.Asker != nil {
		return 1, d.one(ctx, resources[0])
	}
	scan := &sync.Scan{
		DB: d.DB, Target: d.Target, TargetID: d.targetID, Lister: d.Lister, Drain: d.draining,
		Tracked: func(name string) bool { _, ok := d.catalog.ByName(name); return ok },
		Found:   d.found, Page: func(context.Context, sync.Progress) error { return nil },
	}
	progress, unread, err := scan.Run(ctx, resources)
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
	if d.Key != nil && !d.any {
		row, err := d.read(ctx, resources[0])
		if err == nil {
			err = d.known(row)
		}
		errs = append(errs, err)
	}
	return progress.Rows, errors.Join(errs...)
}

// resources returns those that are compared.
func (d *Differ) resources(ctx context.Context) ([]*desired.Resource, error) {
	if _, err := d.catalog.Reload(ctx, d.DB); err != nil {
		return nil, err
	}
	all := d.catalog.All()
	if d.Resource == "" {
		return all, nil
	}
	if one, ok := d.catalog.ByName(d.Resource); ok {
		return []*desired.Resource{one}, nil
	}
	names := make([]string, len(all))
	for i, one := range all {
		names[i] = one.Name
	}
	hint := "Nothing is tracked."
	if len(names) > 0 {
		hint = "Resources: " + strings.Join(names, ", ")
	}
	return nil, Usage(fmt.Sprintf("no resource is named %q", d.Resource), hint)
}

// found collects findings of one resource, to look at many of them at once.
func (d *Differ) found(ctx context.Context, f sync.Finding) error {
	if d.Key != nil && f.Key != *d.Key {
		return nil
	}
	if d.resource != f.Resource || len(d.waiting) == lookRows {
		if err := d.look(ctx); err != nil {
			return err
		}
		d.resource = f.Resource
	}
	d.waiting = append(d.waiting, f)
	return nil
}

func (d *Differ) tell(one Difference) error {
	d.any = true
	return d.Found(one)
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
	err := d.resource.ReadEach(ctx, d.DB, d.Target, d.targetID, keys, func(i int, row desired.Row) error {
		f := d.waiting[i]
		kind, reason := judge(f.Kind, row, d.draining)
		if kind == "" {
			return nil
		}
		return d.tell(Difference{Target: d.Target, Resource: d.resource.Name, Key: f.Key, Kind: kind, Reason: reason})
	})
	d.waiting = d.waiting[:0]
	return err
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
	rows, err := d.DB.Query(ctx, diffUnsettledSQL, d.targetID, d.Resource, d.Key)
	if err != nil {
		return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
	}
	defer rows.Close()
	for rows.Next() {
		one := Difference{Target: d.Target}
		if err := rows.Scan(&one.Resource, &one.Key, &one.Kind, &one.Reason); err != nil {
			return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
		}
		if err := d.tell(one); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read what is not settled in target %s: %w", d.Target, err)
	}
	return nil
}
