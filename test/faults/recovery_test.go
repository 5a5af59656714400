package faults_test

import (
	"fmt"
	"time"
)

// Bounds of recovery; what the machine itself lost is added.
const (
	boundTakeover = 14 * time.Second // of a killed process's leases
	boundFrozen   = 19 * time.Second // of a frozen process's leases
	boundBack     = 5 * time.Second  // from PostgreSQL's return to the first call
)

// loss is the moment at which an owner was killed or frozen.
type loss struct {
	At      time.Time
	Replica string
	PID     int
	Frozen  bool
}

// recovery is how long something took to be well again.
type recovery struct {
	Kind  string
	What  string
	Took  time.Duration
	Bound time.Duration
	From  time.Time
	Lost  time.Duration // by the machine
}

func (r recovery) late() bool { return r.Took > r.Bound+r.Lost }

// lose notes that a replica's process is lost from now on.
func (w *world) lose(r *replica, frozen bool) {
	w.losses = append(w.losses, loss{time.Now(), r.name, r.process().pid, frozen})
}

// takeovers measures how long the leases of lost processes rested. A measurement counts only if another replica was
// well all the time until then, and no other came or went: what was lost may have been given to that one. A process that
// was frozen must have been so all the time: one that goes on keeps its leases. Where one was killed, that which is started in
// its place may come, too, but not be lost in turn: it may have been given the leases.
func takeovers(losses []loss, owned map[string][]owning, end time.Time, anyWell func(but string, from, to time.Time) bool, gone func(loss, time.Time) bool) []recovery {
	var all []recovery
	for _, l := range losses {
		for lease, changes := range owned {
			at := ownedBy(changes, l)
			if at < 0 {
				continue
			}
			taken := end
			for _, c := range changes[at+1:] {
				if c.PID != 0 && c.PID != l.PID {
					taken = c.At
					break
				}
			}
			r := recovery{Kind: "takeover after kill", What: lease, From: l.At, Took: taken.Sub(l.At), Bound: boundTakeover}
			if l.Frozen {
				r.Kind, r.Bound = "takeover after freeze", boundFrozen
			}
			until := l.At.Add(min(r.Took, r.Bound))
			if anyWell(l.Replica, l.At, until) && gone(l, until) {
				all = append(all, r)
			}
		}
	}
	return all
}

// ownedBy returns the index of the change that made the lost process the owner at the time of the loss; -1 if it was not.
func ownedBy(changes []owning, l loss) int {
	at := -1
	for i, c := range changes {
		if c.At.Before(l.At) {
			at = i
		}
	}
	if at >= 0 && changes[at].PID != l.PID {
		return -1
	}
	return at
}

// measure computes the recoveries of a world, and complains about those that took too long.
func (w *world) measure(calls []call) {
	end := time.Now()
	anyWell := func(but string, from, to time.Time) bool {
		// A moment more: who has just started or was just mended does not lead at once.
		from = from.Add(-time.Second)
		well := 0
		for _, r := range w.replicas {
			switch {
			case r.name == but:
			case w.timeline.healthy(r.name, from, to):
				well++
			case !w.timeline.out(r.name, from, to):
				return false
			}
		}
		return well > 0 && w.timeline.healthy(partServer, from, to) && w.inOrder(from, to)
	}
	gone := func(l loss, until time.Time) bool {
		if l.Frozen {
			return w.timeline.out("awake "+l.Replica, l.At, until)
		}
		return w.timeline.falls(l.Replica, l.At, until) <= 1 // its own end
	}
	w.recoveries = takeovers(w.losses, w.owners.history(), end, anyWell, gone)
	for _, back := range w.backs {
		w.recoveries = append(w.recoveries, w.firstCalls(back, calls)...)
	}
	for i := range w.recoveries {
		r := &w.recoveries[i]
		r.Lost = w.stalls.between(r.From, r.From.Add(r.Took))
		w.note("recovery: %s of %s took %s from %s", r.Kind, r.What, r.Took.Round(time.Millisecond), r.From.Format("15:04:05.000"))
		if r.late() && timed() {
			w.violate("recovery", "%s of %s took %s, the bound is %s and the machine lost %s", r.Kind, r.What, r.Took, r.Bound, r.Lost)
		}
	}
}

// firstCalls measures how long after the server's return each target got its first call, if its owner was well.
func (w *world) firstCalls(back time.Time, calls []call) []recovery {
	var all []recovery
	owned := w.owners.history()
	w.mu.Lock()
	drained := w.drained
	w.mu.Unlock()
	for _, e := range w.endpoints {
		if e.plan.Remote {
			continue // its agent comes back to the stream in its own time
		}
		if e.plan.Name == drained {
			continue // there may be nothing to call it for
		}
		first := time.Now()
		for _, c := range calls {
			if c.Object.Target == e.plan.Name && c.Begin.After(back) {
				first = c.Begin
				break
			}
		}
		until := back.Add(min(first.Sub(back), boundBack))
		before := back.Add(-5 * time.Second) // the crash and what came before it
		if w.plan.Applies > 0 && !w.leaderWell(back, until) {
			continue // owners wait until the leader has said which objects new applies hold
		}
		if !w.timeline.healthy(e.plan.Name, before, until) || !w.timeline.healthy(partServer, back.Add(time.Millisecond), until) || !w.inOrder(back, until) {
			continue
		}
		for _, r := range w.replicas {
			p := r.process()
			if at := ownedBy(owned[e.plan.Name], loss{At: back, PID: p.pid}); at >= 0 && w.timeline.healthy(r.name, before, until) {
				all = append(all, recovery{Kind: "first call after a crash of PostgreSQL", What: e.plan.Name, From: back, Took: first.Sub(back), Bound: boundBack})
			}
		}
	}
	return all
}

// leaderWell says whether one process led all the time between two times, and was well.
func (w *world) leaderWell(from, to time.Time) bool {
	pid := 0
	for _, c := range w.owners.history()["tick"] {
		if c.At.Before(from) {
			pid = c.PID
		} else if c.At.Before(to) && c.PID != pid {
			return false
		}
	}
	for _, r := range w.replicas {
		if pid != 0 && r.process().pid == pid {
			return w.timeline.healthy(r.name, from.Add(-5*time.Second), to)
		}
	}
	return false
}

// summary is what a report says about one kind of recovery.
type summary struct {
	Measured int     `json:"measured"`
	Max      float64 `json:"max_seconds"`
	Mean     float64 `json:"mean_seconds"`
	Late     int     `json:"late"`
}

func (s summary) String() string {
	return fmt.Sprintf("%d times, mean %.2fs, max %.2fs, %d too late", s.Measured, s.Mean, s.Max, s.Late)
}
