// Package migrations holds the goose migrations that make the schema reconciler. They are applied by
// internal/migrate, and can as well be applied by the goose command itself:
//
//	psql "$DATABASE_URL" -c 'CREATE SCHEMA IF NOT EXISTS reconciler'
//	goose -dir db/migrations -table reconciler.goose_db_version postgres "$DATABASE_URL" up
//	psql "$DATABASE_URL" -c 'SELECT reconciler.regenerate()'
package migrations

import "embed"

// FS holds every migration, at its root.
//
//go:embed *.sql
var FS embed.FS
