package lease

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// clockSteady is by how much the server's clock may have moved, beside this process's, between two heartbeats whose
// times are still believed.
const clockSteady = 250 * time.Millisecond

// watch is what this process has seen of the heartbeats of others, on its own clock. The server's clock may jump, and
// then makes leases look expired that live, or fresh that are not.
type watch struct {
	last sample
	seen map[string]sighting // by instance
}

// sample is one look at the server's clock; it was read between sent and received.
type sample struct {
	sent, received time.Duration
	server         time.Time
}

// sighting is the newest heartbeat that was seen of a process.
type sighting struct {
	beat  int64
	at    time.Duration // own clock; the heartbeat was sent before
	first time.Duration // own clock; when the process was seen for the first time
	stale bool          // there never was another one, and by the server's clock it is long ago: perhaps left by a dead process
}

func (w *watch) look(rows []store.LeaseHeartbeatRow, sent, received, overdue time.Duration) {
	now := sample{sent: sent, received: received}
	for _, r := range rows {
		if r.Kind == "server" {
			now.server = r.At
		}
	}
	seen := map[string]sighting{}
	note := func(instance string, beat int64, at time.Time) {
		before, known := w.seen[instance]
		if known && before.beat == beat {
			seen[instance] = before
			return
		}
		s := sighting{beat: beat, at: w.when(at, now, overdue), first: received, stale: !known && now.server.Sub(at) > overdue}
		if known {
			s.first = before.first
		}
		seen[instance] = s
	}
	for _, r := range rows {
		if r.Kind == "instance" {
			note(r.Instance, r.Beat, r.At)
		}
	}
	for _, r := range rows { // owners whose rows are gone
		if _, ok := seen[r.Instance]; !ok && r.Instance != "" {
			note(r.Instance, 0, time.Time{})
		}
	}
	w.last, w.seen = now, seen
}

// when says at which time on this process's clock a heartbeat was sent at the latest, that this look is the first to
// show. Without more ado that is now. But when the server's clock has gone as fast as this one since the look before, which
// was not long ago, and the heartbeat is from in between, the server's time of it can be believed.
func (w *watch) when(at time.Time, now sample, overdue time.Duration) time.Duration {
	last := w.last
	if last.server.IsZero() || now.received-last.sent > overdue || at.Before(last.server.Add(-clockSteady)) || at.After(now.server.Add(clockSteady)) || last.jump(now) > clockSteady {
		return now.received
	}
	// Should the clock have moved a little all the same, whichever is later is right.
	latest := max(now.received-now.server.Sub(at), last.received-last.server.Sub(at))
	return min(max(latest, last.sent), now.received)
}

// jump is by how much the server's clock has surely moved beside this one between two samples.
func (s sample) jump(next sample) time.Duration {
	gone := next.server.Sub(s.server)
	least, most := gone-(next.received-s.sent), gone-(next.sent-s.received)
	return max(least, -most)
}
