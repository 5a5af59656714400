// Package prometheus is an example: rows of a table become the targets that a Prometheus server scrapes.
// README.md says how to try it; package examples loads it.
package prometheus

import "embed"

// Migrations holds the goose migrations of the schema prometheus, in the directory migrations. They come after reconciler's.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// VersionTable is the table that goose records the migrations in.
const VersionTable = "prometheus_goose_version"

// Seed is SQL that adds two scrape targets, Prometheus itself and reconciler, if they are not there.
//
//go:embed seed.sql
var Seed string

// Config is reconciler.yaml, for a local database and the directory Dir.
//
//go:embed reconciler.yaml
var Config string

// ServerConfig is prometheus.yml, which has Prometheus watch Dir.
//
//go:embed prometheus.yml
var ServerConfig string

// Dir is the directory that reconciler writes and Prometheus watches.
const Dir = "/tmp/prometheus-targets"
