package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// I10: whatever time passes and whichever renewals come, late ones too, what the grant allows ends while the lease lives.
func TestGrantAllowsNothingThatOutlivesItsLease(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string, lo int64) time.Duration {
			return time.Duration(rapid.Int64Range(lo, int64(100*time.Hour)).Draw(t, name))
		}
		now := span("start", 0)
		clock := func() time.Duration { return now }
		// Leases are of hours, so that the timer, which knows nothing of this clock, does not fire meanwhile.
		deadline, lost := now+span("lives", int64(time.Hour)), false
		h := newHold(clock, deadline, func(error) {}, func() {})
		defer h.end()
		g := &Grant{hold: h}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				// Often to the very end of the lease, and a nanosecond to either side.
				if left := deadline - now; left > 1 && rapid.Bool().Draw(t, "to the end") {
					now += left + time.Duration(rapid.IntRange(-1, 1).Draw(t, "off"))
				} else {
					now += span("passes", 0)
				}
			case 1:
				next := now + span("renewed for", int64(time.Hour))
				lost = lost || now >= deadline
				require.Equal(t, !lost, h.renew(next))
				if !lost {
					deadline = next
				}
			default:
				takes := span("takes", 0)
				if left := deadline - now; left > 0 && rapid.Bool().Draw(t, "just fits") {
					takes = left + time.Duration(rapid.IntRange(0, 1).Draw(t, "over"))
				}
				lives := now < deadline && !lost
				require.Equal(t, lives && now+takes <= deadline, g.Allows(takes), "at %s for %s, the lease ends at %s", now, takes, deadline)
			}
			if now < deadline {
				require.Equal(t, deadline-now, g.Remaining())
			} else {
				require.Zero(t, g.Remaining())
			}
		}
	})
}
