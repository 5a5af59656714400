package lease

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// view is what one heartbeat saw.
type view struct {
	me        string
	at        time.Duration // clock when it arrived
	timeline  int64         // of the server that answered
	instances []seenInstance
	targets   map[string]seenLease
	leader    seenLease
	options   []string // fingerprints of this process's targets, in their order
}

type seenInstance struct {
	id      string
	name    string
	beat    int64
	first   time.Duration // clock when it was seen for the first time
	live    bool
	quiet   bool // a heartbeat of it is overdue, by either clock
	gone    bool // it was not heard of for so long that its row may go
	targets []string
	options []string // fingerprints, in their order
}

type seenLease struct {
	owner         string // "" for nobody
	term          int64
	beat          int64         // the owner's last
	misconfigured bool          // targets.configured does not say whether some process lists it
	options       string        // fingerprint of those that it was owned with last; "": never
	heard         time.Duration // clock at the owner's last heartbeat
	remaining     time.Duration // when it was read, on this process's clock
}

// expired says that the owner has not renewed it in time. Whoever lives may take it.
func (l seenLease) expired() bool { return l.owner != "" && l.remaining <= 0 }

// availableTo says whether a process may take it. What names the process itself is left over from an earlier run.
func (l seenLease) availableTo(instance string) bool {
	return l.owner == "" || l.owner == instance || l.remaining <= 0
}

// see makes a view of what a heartbeat returned, after seen has looked at it.
func see(rows []store.LeaseHeartbeatRow, me string, seen *watch, timing Timing) view {
	v := view{me: me, at: seen.at, targets: map[string]seenLease{}}
	var server time.Time
	for _, r := range rows {
		if r.Kind == "server" {
			v.timeline, server = r.Beat, r.At
		}
	}
	for _, r := range rows {
		last := seen.seen[r.Instance]
		silent := v.at - last.at
		lease := seenLease{owner: r.Instance, term: r.Term, beat: last.beat, misconfigured: r.Misconfigured, options: strings.Join(r.Options, ""), heard: last.at, remaining: r.Ttl - silent}
		if r.Instance == me {
			lease.remaining = r.Ttl // this heartbeat has renewed it
		}
		switch r.Kind {
		case "target":
			v.targets[r.Name] = lease
		case "leader":
			v.leader = lease
		case "instance":
			v.instances = append(v.instances, seenInstance{
				id: r.Instance, name: r.Name, beat: r.Beat, targets: r.Targets, options: r.Options, first: last.first,
				live: silent < timing.Live, quiet: max(silent, server.Sub(r.At)) > timing.overdue(), gone: r.Instance != me && silent > timing.Gone,
			})
		}
	}
	return v
}

func (v view) lease(sl *slot) seenLease {
	if sl.isLeader() {
		return v.leader
	}
	return v.targets[sl.name]
}

// peers counts the other processes that were seen of late.
func (v view) peers() int {
	n := 0
	for _, i := range v.instances {
		if i.live && i.id != v.me {
			n++
		}
	}
	return n
}

// plan says who should have which target. Targets whose lease lives on with a process that takes no part (it is
// stopping, or has died) are nobody's yet. What a dead process leaves behind goes to one that has heard its last heartbeat:
// a newcomer has to wait until it has not heard of it for as long as its lease lasts.
func (v view) plan(mine []string) map[string]string {
	owned, left := map[string]string{}, map[string][]string{}
	var free []string
	for name, t := range v.targets {
		switch {
		case t.owner == "":
			free = append(free, name)
		case t.expired():
			left[t.owner] = append(left[t.owner], name)
		default:
			owned[name] = t.owner
		}
	}
	members := v.members(mine)
	taken := map[string]string{}
	for _, owner := range slices.Sorted(maps.Keys(left)) {
		names := left[owner]
		plan := share(v.witnesses(members, v.targets[names[0]].heard), owned, names)
		for _, name := range names {
			if taker, ok := plan[name]; ok {
				taken[name] = taker
			}
		}
	}
	maps.Copy(owned, taken)
	plan := share(members, owned, free)
	maps.Copy(plan, taken)
	return plan
}

// witnesses are those members that were there at a time, and this process.
func (v view) witnesses(members []member, at time.Duration) []member {
	late := map[string]bool{}
	for _, i := range v.instances {
		if i.id != v.me && i.first > at {
			late[i.id] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(members), func(m member) bool { return late[m.id] })
}

// nextExpiry is when the first lease ends that this process could take, should its owner not renew it.
func (v view) nextExpiry(mine []string, leads bool) time.Duration {
	at := never
	consider := func(l seenLease) {
		if l.owner != "" && l.owner != v.me && l.remaining > 0 {
			at = min(at, v.at+l.remaining+time.Millisecond)
		}
	}
	for name, t := range v.targets {
		if slices.Contains(mine, name) {
			consider(t)
		}
	}
	if leads {
		consider(v.leader)
	}
	return at
}
