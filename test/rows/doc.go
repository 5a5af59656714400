// Package rows has tests of what a whole server makes of rows: changes, syncs, deletes, and targets that fail. It has no code.
package rows
