// Package watch serves what streams have published over HTTP, to clients that cannot reach the database, and takes their reports.
//
// A Hub follows every stream that this process has watchers of: one statement for each wake-up reads what is new in all of them.
// Watchers with equal filters share a group, which keeps its newest changes as encoded frames. A watcher is a place in a stream,
// a version, and nothing else: while its group has everything after that version it takes frames from there, and else it reads the
// table, which keeps the newest version of each object. So a slow watcher reads fewer changes, and costs no memory.
//
// A snapshot reads pages by key, then the changes since its first page by version. Its bookmark is at least as high as every
// version that it has sent, so versions of an object never go back. Within a target, versions become visible in order.
package watch
