// Package fakeapi is a Kubernetes API server in memory, for tests. It answers what a client of kube-apiserver v1.36 sees for a
// dozen kinds: discovery, reads, lists in pages, watches, creates, updates, patches, deletes, and errors with the texts of the
// real one. Server-side apply is the real implementation, with the real schemas of built-in kinds.
//
// What it leaves out: defaults and validation of specs, admission, RBAC, protobuf, controllers, garbage collection. Admit adds
// what a test needs of the first three.
package fakeapi
