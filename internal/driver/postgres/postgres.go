package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// database is one target: its rows in one table.
type database struct {
	target   string
	pool     *pgxpool.Pool
	sql      statements
	create   bool // make the table if it is missing
	scrubber driver.Scrubber
	place    driver.Place
}

// Place returns the table. Two targets may share one.
func (d *database) Place() driver.Place { return d.place }

// Apply writes the object's row.
func (d *database) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	if err := driver.Storable(obj.Ref); err != nil {
		return driver.Terminal(err)
	}
	return d.outcome(ctx, obj.Ref, d.withTable(ctx, func() error { return d.applyOne(ctx, obj) }))
}

func (d *database) applyOne(ctx context.Context, obj driver.Object) error {
	tag, err := d.pool.Exec(ctx, d.sql.apply, obj.Target, obj.Resource, obj.Key, string(obj.Spec), obj.Revision, obj.Term)
	if err == nil && tag.RowsAffected() == 0 {
		return errStale
	}
	return err
}

// Delete deletes the object's row.
func (d *database) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	if driver.Storable(ref) != nil {
		return driver.Done() // no row can have such a name
	}
	var stale bool
	err := d.pool.QueryRow(ctx, d.sql.remove, ref.Target, ref.Resource, ref.Key, ref.Revision, ref.Term).Scan(&stale)
	switch {
	case d.create && codeOf(err) == undefinedTable:
		return driver.Done() // a table that is yet to be made has no row
	case err == nil && stale:
		err = errStale
	}
	return d.outcome(ctx, ref, err)
}

// ApplyBatch writes all rows in one statement. Where that fails because of one of them, each gets its own.
func (d *database) ApplyBatch(ctx context.Context, objs []driver.Object) []driver.Outcome {
	outcomes := make([]driver.Outcome, len(objs))
	var batch batch
	for i, obj := range objs {
		if err := driver.Storable(obj.Ref); err != nil {
			outcomes[i] = driver.Terminal(err)
			continue
		}
		batch.add(i, obj)
	}
	if len(batch.places) == 0 {
		return outcomes
	}
	var written map[name]bool
	err := d.withTable(ctx, func() (err error) {
		written, err = d.applyMany(ctx, batch)
		return err
	})
	for _, i := range batch.places {
		switch {
		case err != nil && concernsObject(err) && ctx.Err() == nil:
			outcomes[i] = d.Apply(ctx, objs[i])
		case err == nil && !written[nameOf(objs[i].Ref)]:
			outcomes[i] = d.outcome(ctx, objs[i].Ref, errStale)
		default:
			outcomes[i] = d.outcome(ctx, objs[i].Ref, err)
		}
	}
	return outcomes
}

// name is what identifies a row.
type name struct{ target, resource, key string }

func nameOf(ref driver.Ref) name { return name{ref.Target, ref.Resource, ref.Key} }

// batch holds the columns of many objects, and each object's place among those of the call.
type batch struct {
	places                          []int
	targets, resources, keys, specs []string
	revisions, terms                []int64
}

func (b *batch) add(place int, obj driver.Object) {
	b.places = append(b.places, place)
	b.targets = append(b.targets, obj.Target)
	b.resources = append(b.resources, obj.Resource)
	b.keys = append(b.keys, obj.Key)
	b.specs = append(b.specs, string(obj.Spec))
	b.revisions = append(b.revisions, obj.Revision)
	b.terms = append(b.terms, obj.Term)
}

// applyMany returns the names of the rows that were written; the others were newer.
func (d *database) applyMany(ctx context.Context, b batch) (map[name]bool, error) {
	rows, err := d.pool.Query(ctx, d.sql.applyBatch, b.targets, b.resources, b.keys, b.specs, b.revisions, b.terms)
	if err != nil {
		return nil, err
	}
	written := make(map[name]bool, len(b.places))
	var n name
	_, err = pgx.ForEachRow(rows, []any{&n.target, &n.resource, &n.key}, func() error {
		written[n] = true
		return nil
	})
	return written, err
}

// Check says whether the table is there, can be written, and fits.
func (d *database) Check(ctx context.Context) error {
	var readOnly string
	err := d.pool.QueryRow(ctx, "SHOW transaction_read_only").Scan(&readOnly)
	if err == nil && readOnly == "on" {
		d.pool.Reset() // another server may be the writable one by now
		return errors.New("the database is read-only: is it a standby?")
	}
	if err == nil {
		// EXPLAIN looks at everything that would stop the statement, and does nothing.
		_, err = d.pool.Exec(ctx, d.sql.check)
	}
	if err == nil || d.create && codeOf(err) == undefinedTable {
		return nil
	}
	return d.said(ctx, err)
}

// Close closes the connections.
func (d *database) Close(context.Context) error {
	d.pool.Close()
	return nil
}

// withTable makes the call and, where the table is missing and may be made, makes it and the call once more.
func (d *database) withTable(ctx context.Context, call func() error) error {
	err := call()
	if !d.create || codeOf(err) != undefinedTable {
		return err
	}
	err = d.makeTable(ctx)
	// Where somebody holds the lock, two calls may make it at once: IF NOT EXISTS looks before the other one has it.
	if code := codeOf(err); err != nil && code != uniqueViolation && code != duplicateTable && code != duplicateObject {
		return err
	}
	return call()
}

// makeTable makes the table, one process after the other: of two at once the server's log would show one as an error. It waits
// for the lock for as long as making it takes, and not for a stranger who holds it.
func (d *database) makeTable(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = '1s'"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", d.sql.lock)
			return err
		})
		_, err := tx.Exec(ctx, d.sql.create)
		return err
	})
}
