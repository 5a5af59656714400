// Package devdb starts a throwaway PostgreSQL for `reconciler dev`: from the server binaries of this machine, otherwise in
// a Docker container.
//
// Nothing is left behind. Stop ends the server and removes its directory; the kernel ends a local server whose
// reconciler was killed; and the next Start removes what killed runs left.
// The server listens on 127.0.0.1 only, and wants a password that was made for it.
package devdb
