package lease

import (
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// watch is what this process has seen of the heartbeats of others. A heartbeat counts from when this process has seen it, on
// its own clock: the server's clock may jump, and would make leases look expired that live.
type watch struct {
	at   time.Duration       // own clock; when it looked last
	seen map[string]sighting // by instance
}

// sighting is the newest heartbeat that was seen of a process.
type sighting struct {
	beat  int64
	at    time.Duration // own clock; when it was seen for the first time, which is later than it was sent
	first time.Duration // own clock; when the process was seen for the first time
}

func (w *watch) look(rows []store.LeaseHeartbeatRow, now time.Duration) {
	seen := map[string]sighting{}
	note := func(instance string, beat int64) {
		s, known := w.seen[instance]
		switch {
		case !known:
			s = sighting{beat: beat, at: now, first: now}
		case beat == 0: // start_over() has removed its heartbeats: that is none
			s.beat = 0
		case s.beat != beat:
			s.beat, s.at = beat, now
		}
		seen[instance] = s
	}
	for _, r := range rows {
		if r.Kind == "instance" {
			note(r.Instance, r.Beat)
		}
	}
	for _, r := range rows { // owners whose rows are gone
		if _, ok := seen[r.Instance]; !ok && r.Instance != "" {
			note(r.Instance, 0)
		}
	}
	w.at, w.seen = now, seen
}
