// Package cli is what the subcommands of cmd/reconciler share: exit codes and errors as a person reads them
// (Failure), flags whose mistakes are reported all at once (Problems), results as a table or as JSON (Printer),
// a database session that says what is wrong in sentences (Session), the definition of a resource as a call of
// reconciler.track or as a goose migration (Definition), and the comparison behind `diff` (Differ).
//
// Nothing here exits, reads the environment, or keeps state. What is printed is safe for a terminal: control
// characters out of rows, keys and error texts are escaped.
package cli
