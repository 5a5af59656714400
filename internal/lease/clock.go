package lease

import "time"

var processStart = time.Now()

// sinceStart is Go's monotonic clock; the wall clock has no part in it.
func sinceStart() time.Duration { return time.Since(processStart) }
