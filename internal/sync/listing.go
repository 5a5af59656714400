package sync

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/store"
)

// ListError is the error of a listing: the target could not be listed, or what it lists cannot be right. No database is to blame.
type ListError struct {
	Target, Text string
}

func (e *ListError) Error() string {
	return fmt.Sprintf("list what target %s has: %s", e.Target, e.Text)
}

// listed is what a target has of one resource.
type listed struct {
	keySet

	resource *desired.Resource
	began    time.Time // of the listing, by the database's clock
	unknown  keySet    // of them those that the ledger did not know

	concerned bool // see Scan.concerned; false: not known yet
}

// outdated reports whether an object was applied after the listing began: the listing has nothing to do with it. A time that is ahead of
// the server's clock is one of before the clock was set back.
func (l *listed) outdated(appliedAt *time.Time, ahead bool) bool {
	return appliedAt != nil && !ahead && !appliedAt.Before(l.began)
}

// listing is what a target has, by resource: those of them that are scanned.
type listing map[string]*listed

// listing lists the target once for all resources and compares what it has with the ledger. Without a Lister it returns nil.
func (s *Scan) listing(ctx context.Context, resources []*desired.Resource) (listing, error) {
	if s.Lister == nil || len(resources) == 0 {
		return nil, nil
	}
	began, err := store.New(s.DB).TimeNow(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the database's clock: %w", err)
	}
	has := listing{}
	for _, r := range resources {
		has[r.Name] = &listed{resource: r, began: began}
	}
	err = s.eachListed(ctx, has, func(of *listed, key string) { of.add(key) }, func(of *listed, page []driver.Listed) error {
		return s.compare(ctx, of, page)
	})
	if err != nil {
		return nil, err
	}
	doubts := false
	for _, of := range has {
		of.sort()
		of.unknown.sort()
		doubts = doubts || len(of.unknown.hashes) > 0
	}
	if doubts {
		err = s.orphans(ctx, has)
	}
	return has, err
}

// compare compares a page of the listing with the ledger, and notes what the ledger does not know.
func (s *Scan) compare(ctx context.Context, of *listed, page []driver.Listed) error {
	rows, err := s.lookup(ctx, of.resource, page)
	if err != nil {
		return err
	}
	for i, row := range rows {
		switch {
		case !row.Known:
			of.unknown.add(row.Key)
		case of.outdated(row.AppliedAt, row.Ahead): // applied since the listing began
		case row.State == string(desired.Applied) && differs(page[i], row):
			err = s.found(ctx, of.resource, row.Key, KindDifferent)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eachListed lists the target. It calls one with every key, and page with at most pageRows objects of one resource, which have the SHA-256 of a
// memory in its place. Objects of tracked resources that are not scanned are passed over; one of any other resource fails the listing.
func (s *Scan) eachListed(ctx context.Context, has listing, one func(of *listed, key string), page func(of *listed, page []driver.Listed) error) error {
	var chunk []driver.Listed
	flush := func() error {
		slices.SortStableFunc(chunk, func(a, b driver.Listed) int { return cmp.Compare(a.Resource, b.Resource) })
		for part := range byResource(chunk) {
			if err := page(has[part[0].Resource], part); err != nil {
				return err
			}
		}
		chunk = chunk[:0]
		return nil
	}
	for entry, err := range driver.List(ctx, s.Lister, slices.Sorted(maps.Keys(has))) {
		if err != nil {
			return &ListError{Target: s.Target, Text: err.Error()}
		}
		of := has[entry.Resource]
		if of == nil {
			if s.Tracked == nil || !s.Tracked(entry.Resource) {
				return s.stray(entry, "which is not tracked")
			}
			continue
		}
		one(of, entry.Key)
		if entry.Memory != nil {
			sum := sha256.Sum256(entry.Memory)
			entry.Memory = sum[:]
		}
		if chunk = append(chunk, entry); len(chunk) == pageRows {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// byResource yields the parts of a page that is in the order of resources.
func byResource(page []driver.Listed) iter.Seq[[]driver.Listed] {
	return func(yield func([]driver.Listed) bool) {
		for len(page) > 0 {
			n := 1
			for n < len(page) && page[n].Resource == page[0].Resource {
				n++
			}
			if !yield(page[:n:n]) {
				return
			}
			page = page[n:]
		}
	}
}

// differs reports whether a target has another content than the ledger says.
func differs(one driver.Listed, row store.LedgerLookupRow) bool {
	if one.Memory != nil {
		return !bytes.Equal(one.Memory, row.Remembered)
	}
	return len(one.Hashes) > 0 && !slices.ContainsFunc(one.Hashes, func(h driver.Hash) bool { return slices.Equal(h[:], row.AppliedHash) })
}

// lookup returns what the ledger has of listed objects of a resource, in their order.
func (s *Scan) lookup(ctx context.Context, r *desired.Resource, page []driver.Listed) ([]store.LedgerLookupRow, error) {
	asked := store.LedgerLookupParams{TargetID: s.TargetID, ResourceID: r.ID, Keys: make([]string, len(page))}
	for i, one := range page {
		asked.Keys[i], asked.Remembers = one.Key, asked.Remembers || one.Memory != nil
	}
	rows, err := store.New(s.DB).LedgerLookup(ctx, asked)
	if err != nil {
		return nil, fmt.Errorf("read the ledger of resource %s: %w", r.Name, err)
	}
	return rows, nil
}
