// Package pace shortens the product's intervals in test builds, so that tests do not wait for a poll that comes every
// 30 s. A build with the tag `pace` (`make test` has it) divides each interval by Divisor; a plain build leaves it as it
// is. Leases and call timeouts are not divided: on a busy machine, shorter ones expire. The larger pools are smaller, too:
// sessions of PostgreSQL are most of what a test costs.
package pace

import "time"

// Of returns the interval d as this build has it.
func Of(d time.Duration) time.Duration { return d / Divisor }

// Conns returns the size of a pool of n connections as this build has it.
func Conns(n int32) int32 { return (n + poolDivisor - 1) / poolDivisor }
