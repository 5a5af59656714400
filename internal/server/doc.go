// Package server puts the parts together: it opens the connections, shares one feed, one catalog and one listener
// between all targets, lets the lease manager say which targets this process owns, and serves probes and metrics.
//
// `reconciler run` and `reconciler dev` are its callers. New never fails; Run does, with errors for people.
package server
