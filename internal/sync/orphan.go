package sync

import (
	"context"
	"fmt"
	"slices"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// orphans looks again at what the ledger did not know. An ordinary delete may have come between the listing and the look
// at the ledger: the target then no longer has it. Or the first call for it is under way: then the ledger is to know it first.
// What the target still has, and the ledger still does not know, is an orphan.
func (s *Scan) orphans(ctx context.Context, has listing) error {
	return s.eachListed(ctx, has, func(*listed, string) {}, func(of *listed, page []driver.Listed) error {
		page = slices.DeleteFunc(page, func(one driver.Listed) bool { return !of.unknown.has(one.Key) })
		if len(page) == 0 {
			return nil
		}
		if s.Know != nil {
			if err := s.Know(ctx); err != nil {
				return err
			}
		}
		rows, err := s.lookup(ctx, of.resource, page)
		if err != nil {
			return err
		}
		for i, row := range rows {
			if row.Known {
				continue
			}
			if err := s.orphan(ctx, of, page[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// orphan reports an orphan. A program may name the resource wrongly, and a delete would then remove the object of another one: its word
// counts for a resource that has something to do with the target.
func (s *Scan) orphan(ctx context.Context, of *listed, one driver.Listed) error {
	if one.Unmarked && !of.concerned {
		concerned, err := s.concerned(ctx, of.resource)
		if err != nil {
			return err
		}
		if of.concerned = concerned; !concerned {
			return s.stray(one, "which has neither a row nor a ledger row in this target")
		}
	}
	return s.found(ctx, of.resource, one.Key, KindOrphan)
}

// concerned reports whether a resource has a row, running or not, or a ledger row in the target.
func (s *Scan) concerned(ctx context.Context, r *desired.Resource) (bool, error) {
	rows, err := store.New(s.DB).LedgerPage(ctx, store.LedgerPageParams{TargetID: s.TargetID, ResourceID: r.ID, PageRows: 1})
	if err != nil {
		return false, fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
	}
	if len(rows) > 0 {
		return true, nil
	}
	return r.HasRow(ctx, s.DB, s.Target)
}

// stray returns the error for a listing that names an object which cannot be there.
func (s *Scan) stray(one driver.Listed, why string) error {
	const shownMax = 100
	return &ListError{Target: s.Target, Text: fmt.Sprintf("it names an object of resource %s, %s: key %s; nothing is deleted. "+
		"Correct what makes the listing: it must name the resource of each object, and leave out what reconciler did not apply here",
		driver.Snippet([]byte(one.Resource), shownMax), why, driver.Snippet([]byte(one.Key), shownMax))}
}
