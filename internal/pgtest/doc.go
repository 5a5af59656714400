// Package pgtest gives tests a real PostgreSQL: New returns a database of the test's own, cloned in
// milliseconds from a template that has every migration; Empty one without them; Holding one on a second
// shared server, for tests that keep transactions open; Server a whole server to restart and to crash;
// Cluster.Standby a hot standby of it to promote.
//
// Every test binary of one `go test ./...` shares these two servers per PostgreSQL version. One runs in a
// container where a Docker engine has a suitable image, else from local server binaries; the variables
// RECONCILER_TEST_PG (major version, default 15) and RECONCILER_TEST_PG_FROM (docker or local, default:
// whichever is there) choose. A machine that has neither fails with what to do about it; nothing is skipped.
//
// Nothing outlives the tests, however they end. Each process that uses a server holds a shared file lock
// on the server's directory, and a reaper (the test binary once more, see reap.go) waits for the exclusive
// one: the kernel gives it up when the last user is gone, killed ones too. A machine that was switched
// off leaves a directory behind that the next run sweeps away.
//
// Other tests use a shared server at the same time, and some things are the whole server's: make roles
// with DB.Role; make replication slots, which wait for every open transaction, on a Server; and expect of
// pg_stat_activity, pg_prepared_xacts and the like that they show others' rows.
//
// Package pgserver runs the servers. Only tests import this package.
package pgtest
