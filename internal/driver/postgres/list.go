package postgres

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// listPageRows is how many rows of a listing are in memory at once.
const listPageRows = 1000

// List yields the rows of each resource in the order of their keys, page by page: no snapshot is held between.
func (d *database) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return driver.EachResource(resources, func(resource string) iter.Seq2[driver.Listed, error] {
		return func(yield func(driver.Listed, error) bool) {
			if driver.Storable(driver.Ref{Resource: resource}) == nil { // else no row can have the name
				d.list(ctx, resource, yield)
			}
		}
	})
}

func (d *database) list(ctx context.Context, resource string, yield func(driver.Listed, error) bool) {
	page := make([]driver.Listed, 0, listPageRows)
	query, args := d.sql.listFirst, []any{d.target, resource, listPageRows}
	for {
		rows, err := d.pool.Query(ctx, query, args...)
		if err == nil {
			page, err = readPage(rows, resource, page[:0])
		}
		if d.create && codeOf(err) == undefinedTable {
			return // a table that is yet to be made has no row
		}
		if err != nil {
			yield(driver.Listed{}, fmt.Errorf("list %q: %w", resource, d.said(ctx, err)))
			return
		}
		for _, listed := range page {
			if !yield(listed, nil) {
				return
			}
		}
		if len(page) < listPageRows {
			return
		}
		query, args = d.sql.listNext, []any{d.target, resource, listPageRows, page[len(page)-1].Key}
	}
}

func readPage(rows pgx.Rows, resource string, page []driver.Listed) ([]driver.Listed, error) {
	var key string
	var hash []byte
	_, err := pgx.ForEachRow(rows, []any{&key, &hash}, func() error {
		listed := driver.Listed{Resource: resource, Key: key, Hashes: []driver.Hash{foreign}}
		if len(hash) == len(foreign) {
			listed.Hashes[0] = driver.Hash(hash)
		}
		page = append(page, listed)
		return nil
	})
	return page, err
}

// foreign is the hash of what cannot be the content of any spec, such as NULL in a table of the user's own: a sync replaces it.
var foreign = driver.HashSpec(nil)
