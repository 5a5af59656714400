// Package budget bounds the bytes of objects that a process holds in memory for readers of its streams.
//
// A process has one budget, which its config sets. Half of it is for frames that are kept for all watchers, and half for pages that
// watchers are sending. Bytes are counted as they are in memory. A read cannot know how much it will find, so it borrows for the most
// that it may, and gives back what it did not need.
package budget
