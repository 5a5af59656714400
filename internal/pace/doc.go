// Package pace shortens the product's intervals in test builds, so that tests do not wait for a poll that comes every
// 30 s. A build with the tag `pace` (`make test` has it) divides each interval by Divisor; a plain build leaves it as it
// is. Leases and call timeouts are not divided: on a busy machine, shorter ones expire.
package pace

import "time"

// Of returns the interval d as this build has it.
func Of(d time.Duration) time.Duration { return d / Divisor }
