// Package edge is an example: DNS records that resolvers at the edge, which cannot reach the database, follow over HTTP.
// README.md says how to try it; package examples loads it.
package edge

import "embed"

// Migrations holds the goose migrations of the schema edge, in the directory migrations. They come after reconciler's.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// VersionTable is the table that goose records the migrations in.
const VersionTable = "edge_goose_version"

// Seed is SQL that adds three records, if they are not there.
//
//go:embed seed.sql
var Seed string

// Config is reconciler.yaml, for a local database.
//
//go:embed reconciler.yaml
var Config string
