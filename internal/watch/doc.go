// Package watch serves what streams have published over HTTP, to clients that cannot reach the database.
//
// A Hub follows every stream that this process has watchers of: one statement for each wake-up reads what is new in all of them.
// Watchers with equal filters share a group, which keeps its newest changes as encoded frames. A watcher is a place in a stream,
// a version, and nothing else: while its group has everything after that version it takes frames from there, and else it reads the
// table, which keeps the newest version of each object. So a slow watcher reads fewer changes, and costs no memory.
//
// A snapshot is read in pages by key, followed by what has changed meanwhile, by version. It ends at a version that is not below
// any that it has sent: versions of an object never go back. Within a target versions become visible in their order.
package watch
