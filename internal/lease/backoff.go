package lease

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause after the given number of failures in a row: doubled each time, up to longest, and shortened
// by up to a quarter so that targets that failed together do not come back together.
func backoff(failures int, shortest, longest time.Duration) time.Duration {
	pause := longest
	if shift := failures - 1; shift < 63 && shortest < longest>>shift { // compared so that nothing overflows
		pause = shortest << shift
	}
	return max(shortest, pause-rand.N(pause/4+1))
}

// jittered is an interval shortened by up to a tenth.
func jittered(interval time.Duration) time.Duration { return interval - rand.N(interval/10+1) }
