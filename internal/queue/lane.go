package queue

// Lane is the way by which an object came into the queue.
type Lane int

// The lanes. Live changes go first; the rest has a share that is never taken away.
const (
	LaneLive Lane = iota
	LaneSync
)
