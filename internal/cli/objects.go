package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// objectsPage is how many rows are read in one statement.
const objectsPage = 500

const memoriesSQL = `SELECT r.name, l.key, l.memory
FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id JOIN reconciler.resources r ON r.id = l.resource_id
WHERE t.name = $1 AND l.memory IS NOT NULL`

// Objects returns a sequence of the spec of every running row of a target, and then the memory of every object in the ledger, without its
// spec. Rows that cannot be read are left out. An error ends it.
func Objects(ctx context.Context, db *pgx.Conn, target string) (iter.Seq2[driver.Object, error], error) {
	catalog := &desired.Catalog{}
	if _, err := catalog.Reload(ctx, db); err != nil {
		return nil, err
	}
	return func(yield func(driver.Object, error) bool) {
		for _, resource := range catalog.All() {
			more, err := specs(ctx, db, target, resource, yield)
			if err != nil {
				yield(driver.Object{}, err)
			}
			if err != nil || !more {
				return
			}
		}
		if err := memories(ctx, db, target, yield); err != nil {
			yield(driver.Object{}, err)
		}
	}, nil
}

// errEnough ends a read of which the caller wants no more.
var errEnough = errors.New("enough")

func specs(ctx context.Context, db *pgx.Conn, target string, resource *desired.Resource, yield func(driver.Object, error) bool) (more bool, err error) {
	if resource.Removed {
		return true, nil
	}
	for after := []string(nil); ; {
		page, err := resource.Page(ctx, db, target, 0, after, objectsPage, true)
		if err != nil {
			return false, err
		}
		err = resource.ReadEach(ctx, db, target, 0, page.Differ, func(_ int, row desired.Row) error {
			if row.Spec != nil && !yield(driver.Object{Ref: driver.Ref{Target: target, Resource: resource.Name, Key: row.Key}, Spec: row.Spec, Hash: row.Hash}, nil) {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if page.Last == nil {
			return true, nil
		}
		after = page.Last
	}
}

func memories(ctx context.Context, db *pgx.Conn, target string, yield func(driver.Object, error) bool) error {
	rows, err := db.Query(ctx, memoriesSQL, target)
	if err != nil {
		return fmt.Errorf("read the ledger of target %s: %w", target, err)
	}
	obj := driver.Object{Ref: driver.Ref{Target: target}}
	_, err = pgx.ForEachRow(rows, []any{&obj.Resource, &obj.Key, &obj.Memory}, func() error {
		if !yield(obj, nil) {
			return errStopped
		}
		return nil
	})
	if err != nil && !errors.Is(err, errStopped) {
		return fmt.Errorf("read the ledger of target %s: %w", target, err)
	}
	return nil
}

var errStopped = errors.New("stopped")
