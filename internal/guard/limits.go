package guard

import (
	"math"
	"time"
)

// Limits are what a target's config allows, with its defaults resolved.
type Limits struct {
	MaxDeletes  int     // more are held; -1 means no limit by count
	MaxFraction float64 // a greater part of the objects is held, but see Floor
	Floor       int     // this many deletes are never held because of MaxFraction
	Window      time.Duration
}

// Limit returns how many deletes may pass within the window, for a target that had this many objects.
func (l Limits) Limit(objects int64) int64 {
	limit := int64(math.MaxInt64)
	if l.MaxDeletes >= 0 {
		limit = int64(l.MaxDeletes)
	}
	if l.MaxFraction >= 1 { // no part is greater, also when the same objects come and go more than once
		return limit
	}
	// The margin makes 0.3 of 10 three, whatever the binary fraction says.
	return min(limit, max(int64(l.Floor), int64(math.Floor(l.MaxFraction*float64(objects)+1e-9))))
}
