// Package budget bounds the bytes of objects that a process holds in memory.
//
// A process has one budget, which its config sets. A third of it is for frames that are kept for all watchers of streams, a third
// for pages that watchers are sending, and a third for what the owners of targets call for. Bytes are counted as they are in
// memory. A read cannot know how much it will find, so it borrows for the most that it may, and gives back what it did not need.
//
// Watchers wait for their pages in a line, and those that hold one for long are disconnected (Pool). A target may be slow for as
// long as it likes. The more is lent, the less each target may hold, and each may always hold one object (Shares).
package budget
