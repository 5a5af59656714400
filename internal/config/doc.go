// Package config says what the daemon and the commands are configured to do, and from where each value came.
//
// Values have four sources; a later one wins: default, config file (YAML or JSON), environment
// (RECONCILER_...), flag. Every key is one entry in knobs.go: its path, type, default, bounds and help
// text. Loading, printing, the names of environment variables and the table in docs/configuration.md all
// come from those entries, so that they cannot disagree.
//
// Who calls what:
//
//   - commands that only talk to the database: Load, then Config.ValidateDatabase. They work on a machine
//     that has none of the targets' secrets.
//   - run: LoadAndOpen, which also opens every target's driver, so that one report holds everything.
//   - `config print`: Load, then Config.Print.
//
// Promises: all problems are reported at once, as an *Error, each with file, line, column and field path
// where known. Nothing that the package returns, prints or reports as an error contains the password of a
// URL or an option that looks like a secret. The package keeps no state and reads the environment only as
// given in LoadOptions; parsing a database URL reads what libpq would read (PG... variables, certificates).
package config
