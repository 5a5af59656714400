// Package devdb starts a throwaway PostgreSQL for `reconciler dev`: from the server binaries of this machine (as the
// user postgres when this process is root, which PostgreSQL refuses), else in a Docker container.
//
// Nothing is left behind. Stop ends the server and removes its directory; the kernel ends a local server whose
// reconciler was killed; and what a killed run left in the directory of all runs is removed by the next Start.
// The server listens on 127.0.0.1 only, and wants a password that was made for it.
package devdb
