package migrate

import (
	"errors"
	"fmt"
)

// ErrUnrecorded means that the schema is there but not the table that says which version it has.
var ErrUnrecorded = errors.New("the schema reconciler is installed, but reconciler.goose_db_version is missing: " +
	"was goose run without `-table reconciler.goose_db_version`? Move its table there: " +
	"ALTER TABLE goose_db_version SET SCHEMA reconciler")

// NewerSchemaError means that a newer binary has migrated the database: this one does not know the schema.
type NewerSchemaError struct {
	Have int64 // version of the database
	Want int64 // newest version that this binary embeds
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the database has schema version %d, this binary knows up to %d: use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)", e.Have, e.Want)
}

// PendingError means that the database lacks migrations of this binary.
type PendingError struct {
	Have int64 // version of the database, 0 for none
	Want int64 // newest version that this binary embeds
}

func (e *PendingError) Error() string {
	if e.Have == 0 {
		return "the database has no schema reconciler yet: run `reconciler migrate up`"
	}
	return fmt.Sprintf("the database has schema version %d, this binary needs %d: run `reconciler migrate up`", e.Have, e.Want)
}
