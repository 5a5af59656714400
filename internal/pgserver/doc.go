// Package pgserver runs PostgreSQL servers that are thrown away: from the server binaries of this machine, as the user
// postgres when this process is root, which PostgreSQL refuses; or in Docker containers, through the docker command and
// with it the engine, context and credentials that it is set up for. Servers listen on 127.0.0.1 only.
//
// Each server has its own directory in a base directory. Every process that uses the server holds a shared lock on a
// file there, which the kernel releases when the process ends. A state file names what must be ended: Sweep ends and
// removes the servers whose users have all died.
//
// Package devdb uses it for `reconciler dev`, package pgtest for tests.
package pgserver
