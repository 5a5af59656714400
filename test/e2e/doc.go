// Package e2e holds end-to-end tests of the command reconciler: the built binary, on a real PostgreSQL, with real
// targets. It is a black box to them. They write rows, config files and command lines, kill, stop and cut off processes
// and servers, and compare what the targets have with rows that they read by SQL of their own.
//
// Nothing imports this package.
package e2e
