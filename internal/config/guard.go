package config

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/guard"
)

const (
	guardFractionDefault = 0.2
	// With a default that nobody chose, a small target must not be held for every second delete.
	guardFloorDefault = 10
	// With a fraction that somebody chose, only a lone delete passes: one object may be all that a target has.
	guardFloorExplicit = 1
)

// Guard holds deletes that look like an accident. Unset (nil) and zero differ: see Limits.
type Guard struct {
	// MaxDeletes is how many deletes may pass within Window; nil means no limit by count, 0 holds every delete.
	MaxDeletes *int
	// MaxFraction is which part of a target's objects may be deleted within Window; nil means the default.
	MaxFraction *float64
	// Window is the time over which deletes are counted together.
	Window time.Duration
}

// Limits resolves the defaults. A fraction that is unset is 0.2 with a floor of 10 deletes; one that is set
// is meant strictly, but a lone delete is held because of it only when it is 0.
func (g Guard) Limits() guard.Limits {
	limits := guard.Limits{
		MaxDeletes:  -1,
		MaxFraction: guardFractionDefault,
		Floor:       guardFloorDefault,
		Window:      g.Window,
	}
	if g.MaxDeletes != nil {
		limits.MaxDeletes = *g.MaxDeletes
	}
	if g.MaxFraction != nil {
		limits.MaxFraction, limits.Floor = *g.MaxFraction, guardFloorExplicit
		if *g.MaxFraction == 0 {
			limits.Floor = 0
		}
	}
	return limits
}
