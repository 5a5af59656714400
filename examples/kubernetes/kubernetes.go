// Package kubernetes is an example: rows of a few tables become the objects of three clusters.
// README.md says how to try it; package examples loads it.
package kubernetes

import "embed"

// Migrations holds the goose migrations of the schema kubernetes, in the directory migrations. They come after reconciler's.
//
//go:embed migrations/*.sql
var Migrations embed.FS

// VersionTable is the table that goose records the migrations in.
const VersionTable = "kubernetes_goose_version"

// Seed is SQL that adds three apps in three clusters, if they are not there.
//
//go:embed seed.sql
var Seed string

// Config is reconciler.yaml, for a local database and kubeconfig files in the directory Dir.
//
//go:embed reconciler.yaml
var Config string

// AgentConfig is agent.yaml, for a kubeconfig file and a state in the directory Dir.
//
//go:embed agent.yaml
var AgentConfig string

// Dir is the directory that the configs name.
const Dir = "/tmp/kubernetes-clusters"
