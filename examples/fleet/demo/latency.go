package main

import (
	"fmt"
	"slices"
	"time"
)

// latencies are durations of one kind.
type latencies []time.Duration

// at returns the value that a part p (0 to 1) of them does not exceed.
func (l latencies) at(p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	n := int(p * float64(len(sorted)))
	if float64(n) == p*float64(len(sorted)) {
		n--
	}
	return sorted[min(max(n, 0), len(sorted)-1)]
}

func (l latencies) String() string {
	return fmt.Sprintf("p50 %s   p99 %s   max %s", millis(l.at(0.5)), millis(l.at(0.99)), millis(l.at(1)))
}
