// Package fleet is an example: the control plane of a small deploy platform, with three regions as targets.
// README.md says what it models and how to try it; package examples loads it.
package fleet

import "embed"

// Migrations holds the goose migrations of the schema fleet, in the directory migrations. They come after reconciler's.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// VersionTable is the table that goose records the migrations in.
const VersionTable = "fleet_goose_version"

// Seed is SQL that fills an empty schema: 1,000 live deployments in three regions, 100,000 of the past, 200 network
// policies. The settings fleet.live, fleet.historical and fleet.policies change the numbers. It changes nothing in a
// schema that has rows.
//
//go:embed seed.sql
var Seed string

// Config is reconciler.yaml, for a local database and directories below /tmp/fleet.
//
//go:embed reconciler.yaml
var Config string

// Dir is what the directories of all targets in Config begin with. The driver makes the last part of a path only.
const Dir = "/tmp/fleet"
