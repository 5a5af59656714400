package sync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
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

// ListError says that a target could not be listed. It is about the target, not about the database.
type ListError struct {
	Target, Resource, Text string
}

func (e *ListError) Error() string {
	return fmt.Sprintf("list what target %s has of resource %s: %s", e.Target, e.Resource, e.Text)
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
	// Know returns when the ledger knows every object that a call has begun for; nil: this process makes no calls.
	Know  func(ctx context.Context) error
	Found func(ctx context.Context, f Finding) error
	Page  func(ctx context.Context, p Progress) error

	progress Progress
}

// Run scans the resources, one after the other, and returns what it counted. A resource that cannot be read ends the scan of that
// resource only. If none can be read, that is an error.
func (s *Scan) Run(ctx context.Context, resources []*desired.Resource) (Progress, []Unread, error) {
	var unread []Unread
	for _, r := range resources {
		s.progress.Resource, s.progress.Key = r.Name, ""
		err := s.resource(ctx, r)
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

func (s *Scan) resource(ctx context.Context, r *desired.Resource) error {
	listed, err := s.listing(ctx, r)
	if err != nil {
		return err
	}
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
	for {
		page, err := r.Page(ctx, s.DB, s.Target, s.TargetID, after, pageRows, s.Force)
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
func (s *Scan) ledger(ctx context.Context, r *desired.Resource, listed *keySet) error {
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

func (s *Scan) ledgerPage(ctx context.Context, r *desired.Resource, rows []store.LedgerPageRow, listed *keySet) error {
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
func (s *Scan) judge(row store.LedgerPageRow, gone, removed bool, listed *keySet) (Kind, bool) {
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
	if listed != nil && row.Present && !listed.has(row.Key) && !listed.outdated(row.AppliedAt) {
		return KindMissing, true
	}
	return KindCheck, !s.Since.IsZero() && row.AppliedAt != nil && !row.AppliedAt.Before(s.Since)
}

// listing reads what the target really has of a resource, and compares it with the ledger. It returns the keys.
func (s *Scan) listing(ctx context.Context, r *desired.Resource) (*keySet, error) {
	if s.Lister == nil {
		return nil, nil
	}
	began, err := store.New(s.DB).TimeNow(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the database's clock: %w", err)
	}
	set, unknown := &keySet{began: began}, &keySet{}
	err = s.eachListed(ctx, r, set.add, func(chunk []driver.Listed) error { return s.listed(ctx, r, chunk, set, unknown) })
	if err != nil {
		return nil, err
	}
	set.sort()
	return set, s.orphans(ctx, r, unknown)
}

// orphans looks again at what the ledger did not know. An ordinary delete may have come between the listing and the look
// at the ledger: the target then no longer has it. Or the first call for it is under way: then the ledger is to know it first.
// What the target still has, and the ledger still does not know, is an orphan.
func (s *Scan) orphans(ctx context.Context, r *desired.Resource, unknown *keySet) error {
	if len(unknown.hashes) == 0 {
		return nil
	}
	unknown.sort()
	return s.eachListed(ctx, r, func(string) {}, func(chunk []driver.Listed) error {
		chunk = slices.DeleteFunc(chunk, func(one driver.Listed) bool { return !unknown.has(one.Key) })
		if len(chunk) > 0 && s.Know != nil {
			if err := s.Know(ctx); err != nil {
				return err
			}
		}
		rows, err := s.lookup(ctx, r, chunk)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if row.Known {
				continue
			}
			if err := s.found(ctx, r, row.Key, KindOrphan); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachListed lists the target: one is told of every key, page of every pageRows objects, which have the SHA-256 of a memory in its place.
func (s *Scan) eachListed(ctx context.Context, r *desired.Resource, one func(key string), page func(chunk []driver.Listed) error) error {
	var chunk []driver.Listed
	for listed, err := range driver.List(ctx, s.Lister, r.Name) {
		if err != nil {
			return &ListError{Target: s.Target, Resource: r.Name, Text: err.Error()}
		}
		one(listed.Key)
		if listed.Memory != nil {
			sum := sha256.Sum256(listed.Memory)
			listed.Memory = sum[:]
		}
		if chunk = append(chunk, listed); len(chunk) < pageRows {
			continue
		}
		if err := page(chunk); err != nil {
			return err
		}
		chunk = chunk[:0]
	}
	return page(chunk)
}

// listed compares a page of the listing with the ledger. What the ledger does not know goes into unknown.
func (s *Scan) listed(ctx context.Context, r *desired.Resource, chunk []driver.Listed, set, unknown *keySet) error {
	rows, err := s.lookup(ctx, r, chunk)
	if err != nil {
		return err
	}
	for i, row := range rows {
		switch {
		case !row.Known:
			unknown.add(row.Key)
		case set.outdated(row.AppliedAt): // applied since the listing began
		case row.State == string(desired.Applied) && differs(chunk[i], row):
			err = s.found(ctx, r, row.Key, KindDifferent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// differs reports whether a target has another content than the ledger says.
func differs(one driver.Listed, row store.LedgerLookupRow) bool {
	if one.Memory != nil {
		return !bytes.Equal(one.Memory, row.Remembered)
	}
	return len(one.Hashes) > 0 && !slices.ContainsFunc(one.Hashes, func(h driver.Hash) bool { return slices.Equal(h[:], row.AppliedHash) })
}

// lookup returns what the ledger says about listed objects, in their order.
func (s *Scan) lookup(ctx context.Context, r *desired.Resource, chunk []driver.Listed) ([]store.LedgerLookupRow, error) {
	if len(chunk) == 0 {
		return nil, nil
	}
	asked := store.LedgerLookupParams{TargetID: s.TargetID, ResourceID: r.ID, Keys: make([]string, len(chunk))}
	for i, one := range chunk {
		asked.Keys[i], asked.Remembers = one.Key, asked.Remembers || one.Memory != nil
	}
	rows, err := store.New(s.DB).LedgerLookup(ctx, asked)
	if err != nil {
		return nil, fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
	}
	return rows, nil
}

// keySet is a set of keys in eight bytes each: a million keys are 8 MB. Two keys with equal hashes (one chance in 2^64
// for each pair) would hide one missing object until its content changes.
type keySet struct {
	hashes []uint64
	began  time.Time // of the listing, by the database's clock
}

// outdated reports whether an object was applied after the listing began: the listing says nothing about it.
func (s *keySet) outdated(appliedAt *time.Time) bool {
	return appliedAt != nil && !appliedAt.Before(s.began)
}

func (s *keySet) add(key string) { s.hashes = append(s.hashes, keyHash(key)) }

func (s *keySet) sort() { slices.Sort(s.hashes) }

func (s *keySet) has(key string) bool {
	_, ok := slices.BinarySearch(s.hashes, keyHash(key))
	return ok
}

func keyHash(key string) uint64 {
	sum := sha256.Sum256([]byte(key))
	return binary.BigEndian.Uint64(sum[:8])
}
