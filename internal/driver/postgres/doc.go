// Package postgres is the driver that keeps objects as rows of a table in another PostgreSQL database. One
// statement applies an object, or a whole batch; a row carries the term and revision that wrote it, so that a
// late call of an owner that was deposed never overwrites a newer one. Specs are compared by their hash, inside
// the database.
package postgres
