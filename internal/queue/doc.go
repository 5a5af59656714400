// Package queue holds the objects of one target that must be looked at, each at most once.
//
// An object waits in one of two lanes, is in flight, or rests. A request for one that waits or rests joins it; a request for one
// in flight has it looked at once more. Live changes go first, and each lane has a share of the window, which bounds the calls in
// flight. A full lane makes its source wait.
//
// The owner of a target has one Queue: sources Push, a dispatcher calls Take and then Looked for each object, and whatever comes
// of it ends in Done, PutBack or Rest. What the owner wants to know of an object beside is its Payload. All methods may be
// called from several goroutines.
package queue
