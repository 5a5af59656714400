package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// elapsed is a monotonic clock that goes on while the machine is suspended, which Go's does not: a laptop or a
// virtual machine that wakes up after an hour must not believe in a lease of an hour ago.
func elapsed() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return sinceStart()
	}
	return time.Duration(ts.Nano())
}
