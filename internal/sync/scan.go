package sync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// pageRows is how many rows or ledger rows are compared in one statement.
const pageRows = 2000

// Kind says how an object differs.
type Kind string

// The kinds of difference.
const (
	KindStale     Kind = "stale"     // a running row asks for something else than the ledger says
	KindTombstone Kind = "tombstone" // the target has, or may have, what no running row wants
	KindMissing   Kind = "missing"   // the ledger says that the target has it; it has not
	KindDifferent Kind = "different" // the target has it with another content
	KindOrphan    Kind = "orphan"    // the target has what the ledger does not know
	KindCheck     Kind = "check"     // no difference known; a verifying scan of a target that cannot list asks for a call
)

// Finding is one object that differs.
type Finding struct {
	Resource *desired.Resource
	Key      string
	Kind     Kind
	Forced   bool // nothing says that it differs: every row is asked for
}

// Unread is a resource whose rows PostgreSQL does not let be read: its query fails, or another session has locked them.
type Unread struct {
	Resource *desired.Resource
	Err      error
}

// Progress is how far a scan is.
type Progress struct {
	Rows       int64 // running rows compared
	Upserts    int64 // of them not as the ledger says
	Tombstones int64
	Drifted    int64 // missing, different and orphaned in the target
	Resource   string
	Key        string
}

// Scan compares one target. Found is called for every difference, Page after every page; an error of either ends it.
type Scan struct {
	DB       store.DBTX
	Target   string
	TargetID int32
	Lister   driver.Lister // nil: the target cannot say what it has, or is not asked
	Force    bool          // call for every running row, for a target that cannot list
	Drain    bool          // nothing is wanted
	// Since makes objects that were applied at or after it be checked once more; zero: none.
	Since time.Time
	// Tracked reports whether a resource has this name; nil: those that are scanned have names.
	Tracked func(name string) bool
	// Know returns when the ledger knows every object that a call has begun for; nil: this process makes no calls.
	Know  func(ctx context.Context) error
	Found func(ctx context.Context, f Finding) error
	Page  func(ctx context.Context, p Progress) error

	progress Progress
}

// Run lists the target, scans the resources, one after the other, and returns what it counted. A resource that cannot be read ends the scan
// of that resource only. If none can be read, that is an error.
func (s *Scan) Run(ctx context.Context, resources []*desired.Resource) (Progress, []Unread, error) {
	listed, err := s.listing(ctx, resources)
	if err != nil {
		return s.progress, nil, err
	}
	var unread []Unread
	for _, r := range resources {
		s.progress.Resource, s.progress.Key = r.Name, ""
		err := s.resource(ctx, r, listed[r.Name])
		var own *readError
		switch {
		case errors.As(err, &own) && ctx.Err() == nil && database.Code(err) != "" && !database.IsUnavailable(err):
			unread = append(unread, Unread{Resource: r, Err: own.err})
		case err != nil:
			return s.progress, nil, err
		}
	}
	if len(unread) > 0 && len(unread) == len(resources) {
		return s.progress, nil, unread[0].Err
	}
	return s.progress, unread, nil
}

// readError is an error of a query over a resource's rows.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

func (s *Scan) resource(ctx context.Context, r *desired.Resource, listed *listed) error {
	if !s.Drain {
		if err := s.rows(ctx, r); err != nil {
			return err
		}
	}
	crash.Point(crash.SyncRowsDone)
	return s.ledger(ctx, r, listed)
}

func (s *Scan) found(ctx context.Context, r *desired.Resource, key string, kind Kind) error {
	switch kind {
	case KindStale, KindCheck:
		s.progress.Upserts++
	case KindTombstone:
		s.progress.Tombstones++
	case KindMissing, KindDifferent, KindOrphan:
		s.progress.Drifted++
	}
	return s.Found(ctx, Finding{Resource: r, Key: key, Kind: kind, Forced: s.Force && kind == KindCheck})
}

// rows compares the running rows with the ledger.
func (s *Scan) rows(ctx context.Context, r *desired.Resource) error {
	var after []string
	for most := pageRows; ; {
		page, err := r.Page(ctx, s.DB, s.Target, s.TargetID, after, most, s.Force)
		if database.IsCancelled(err) && most > 1 { // the server needs too long for so many rows
			most /= 2
			continue
		}
		if err != nil {
			return &readError{err}
		}
		s.progress.Rows += page.Rows
		kind := KindStale
		if s.Force {
			kind = KindCheck
		}
		for _, key := range page.Differ {
			if err := s.found(ctx, r, key, kind); err != nil {
				return err
			}
		}
		if page.Last == nil {
			return nil
		}
		after = page.Last
		crash.Point(crash.SyncPage)
		s.progress.Key = desired.JoinKey(after)
		if err := s.Page(ctx, s.progress); err != nil {
			return err
		}
	}
}

// ledger looks for what no running row wants, and (with a listing) for what the target has lost.
func (s *Scan) ledger(ctx context.Context, r *desired.Resource, listed *listed) error {
	queries := store.New(s.DB)
	after := ""
	for first := true; ; first = false {
		rows, err := queries.LedgerPage(ctx, store.LedgerPageParams{
			TargetID: s.TargetID, ResourceID: r.ID, After: after, PageRows: pageRows,
		})
		if err != nil {
			return fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
		}
		// The page begins with the last key of the one before: "from on" finds an empty key too.
		if !first && len(rows) > 0 && rows[0].Key == after {
			rows = rows[1:]
		}
		if len(rows) == 0 {
			return nil
		}
		if err := s.ledgerPage(ctx, r, rows, listed); err != nil {
			return err
		}
		after = rows[len(rows)-1].Key
		s.progress.Key = after
		if err := s.Page(ctx, s.progress); err != nil {
			return err
		}
	}
}

func (s *Scan) ledgerPage(ctx context.Context, r *desired.Resource, rows []store.LedgerPageRow, listed *listed) error {
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	gone := map[string]bool{}
	if s.Drain {
		for _, key := range keys {
			gone[key] = true
		}
	} else {
		missing, err := r.Missing(ctx, s.DB, s.Target, keys)
		if err != nil {
			return &readError{err}
		}
		for _, key := range missing {
			gone[key] = true
		}
	}
	for _, row := range rows {
		kind, differs := s.judge(row, gone[row.Key], r.Removed, listed)
		if !differs {
			continue
		}
		if err := s.found(ctx, r, row.Key, kind); err != nil {
			return err
		}
	}
	return nil
}

// judge says how a ledger row differs from its user's row (gone or not) and from the listing.
func (s *Scan) judge(row store.LedgerPageRow, gone, removed bool, listed *listed) (Kind, bool) {
	state := desired.State(row.State)
	if gone {
		// What is being deleted, is parked until all deletes are counted, or waits for a person, needs nobody to find it. But untrack()
		// lets go what the guard holds.
		onItsWay := !row.Wanted && state != desired.Applied && !(removed && state == desired.Held)
		return KindTombstone, !onItsWay
	}
	if state != desired.Applied {
		return "", false
	}
	if listed != nil && row.Present && !listed.has(row.Key) && !listed.outdated(row.AppliedAt, row.Ahead) {
		return KindMissing, true
	}
	return KindCheck, !s.Since.IsZero() && row.AppliedAt != nil && !row.AppliedAt.Before(s.Since)
}
