package lease

import (
	"slices"
	"time"

	"github.com/pgreconciler/reconciler/internal/store"
)

// view is what one heartbeat saw.
type view struct {
	me        string
	at        time.Duration // clock when it arrived
	instances []seenInstance
	targets   map[string]seenLease
	leader    seenLease
}

type seenInstance struct {
	id      string
	live    bool
	quiet   bool // a heartbeat of it is overdue
	targets []string
}

type seenLease struct {
	owner      string // "" for nobody
	term       int64
	renewed    bool
	configured bool
	remaining  time.Duration // when it was read
}

// expired says that the owner has not renewed it in time. Whoever lives may take it.
func (l seenLease) expired() bool { return l.owner != "" && l.remaining <= 0 }

// availableTo says whether a process may take it. What names the process itself is left over from an earlier run.
func (l seenLease) availableTo(instance string) bool {
	return l.owner == "" || l.owner == instance || l.remaining <= 0
}

func see(rows []store.LeaseHeartbeatRow, me string, at time.Duration, timing Timing) view {
	v := view{me: me, at: at, targets: map[string]seenLease{}}
	for _, r := range rows {
		lease := seenLease{owner: r.Instance, term: r.Term, renewed: r.Renewed, configured: r.Configured, remaining: r.Remaining}
		switch r.Kind {
		case "target":
			v.targets[r.Name] = lease
		case "leader":
			v.leader = lease
		case "instance":
			v.instances = append(v.instances, seenInstance{
				id: r.Instance, live: r.Remaining > 0, quiet: r.Remaining < timing.Live-timing.overdue(), targets: r.Targets,
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

// members are the processes that take part in the sharing out: this one, and those that were seen of late. One that
// let a lease expire is not waited for, else what a dead process leaves behind would wait for its share too. Neither
// is one whose heartbeat is overdue: it may have died along with the owner. What it holds stays with it.
func (v view) members(mine []string) []member {
	members := []member{{id: v.me, targets: mine}}
	late := map[string]bool{}
	for _, t := range v.targets {
		if t.expired() {
			late[t.owner] = true
		}
	}
	for _, i := range v.instances {
		if i.live && i.id != v.me && !late[i.id] && !i.quiet {
			members = append(members, member{id: i.id, targets: i.targets})
		}
	}
	return members
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
// stopping, or has died) are nobody's yet.
func (v view) plan(mine []string) map[string]string {
	owned := map[string]string{}
	var free []string
	for name, t := range v.targets {
		if t.owner == "" || t.expired() {
			free = append(free, name)
		} else {
			owned[name] = t.owner
		}
	}
	return share(v.members(mine), owned, free)
}

// listed are all targets that some process has in its config, dead ones until their rows are removed: a restart is
// no reason to call a target unconfigured.
func (v view) listed(mine []string) map[string]bool {
	listed := map[string]bool{}
	for _, name := range mine {
		listed[name] = true
	}
	for _, i := range v.instances {
		for _, name := range i.targets {
			listed[name] = true
		}
	}
	return listed
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
