// Package throttle decides when a target may be called, and when not.
//
//	Breaker   a target that does not answer is down: nothing is called but probes, with growing pauses
//	Slowdown  a target that asked for no calls gets none for a while
//	Rate      calls a second
//	Pace      how many calls may be in flight, by how long one takes
//	Backoff   the pause before the next attempt at one object; Jittered and Spread vary it
//
// The owner of a target has one of each. It waits and counts: nothing here starts a goroutine, makes a call or knows a database.
// All but Backoff, which is a value, may be used from several goroutines.
package throttle
