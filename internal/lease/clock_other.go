//go:build !linux

package lease

import "time"

func elapsed() time.Duration { return sinceStart() }
