package migrate

import (
	"context"
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

// EncodingError means that the database stores text in an encoding other than UTF8. A key, a reason or a spec with one character
// that has no form in both could never be read or written.
type EncodingError struct{ Have string }

func (e *EncodingError) Error() string {
	return fmt.Sprintf("the database has encoding %s, and only UTF8 can be used: "+
		"dump it and load it into one made with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0", e.Have)
}

// checkEncoding refuses a database that is not UTF8.
func checkEncoding(ctx context.Context, query queryRow) error {
	var have string
	if err := query(ctx, `SELECT pg_catalog.getdatabaseencoding()::text`).Scan(&have); err != nil {
		return fmt.Errorf("read the encoding of the database: %w", err)
	}
	if have != "UTF8" {
		return &EncodingError{Have: have}
	}
	return nil
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
