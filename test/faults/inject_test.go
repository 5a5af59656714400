package faults_test

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/crash"
)

// Parts of a world in its timeline, beside the replicas.
const (
	partServer  = "postgres"
	partWriters = "connections of writers"
	partOrder   = "order" // is ill while users, neighbours or operators do what they should not; see novelties
)

// awake is the part that is ill while a replica is frozen.
func awake(r *replica) string { return "awake " + r.name }

// due is the end of a fault.
type due struct {
	at  time.Time
	end func()
}

// inject lets the plan's faults strike at their time, and end at theirs. At the end none is left.
func (w *world) inject() {
	var ends []due
	faults := w.plan.Faults
	w.mu.Lock()
	w.began = time.Now()
	w.mu.Unlock()
	last := w.began.Add(w.plan.Lasts)
	for {
		w.reviveAll()
		_ = w.pay() // what is left is tried again
		next := last
		if len(faults) > 0 {
			next = w.began.Add(faults[0].At)
		}
		if i := first(ends); i >= 0 && ends[i].at.Before(next) {
			pass(time.Until(ends[i].at), w.t.Context().Done())
			ends[i].end()
			ends = slices.Delete(ends, i, i+1)
			continue
		}
		pass(time.Until(next), w.t.Context().Done())
		if len(faults) == 0 {
			break
		}
		f := faults[0]
		faults = faults[1:]
		if end := w.strike(f); end != nil {
			ends = append(ends, due{time.Now().Add(f.Lasts), end})
			w.count(f.Kind, 1)
		}
	}
	w.note("no more faults begin; %d go on", len(ends))
	for len(ends) > 0 {
		i := first(ends)
		pass(time.Until(ends[i].at), w.t.Context().Done())
		ends[i].end()
		ends = slices.Delete(ends, i, i+1)
	}
	w.payAll()
	w.disarm()
}

// first returns the index of what ends first, or -1.
func first(ends []due) int {
	found := -1
	for i, d := range ends {
		if found < 0 || d.at.Before(ends[found].at) {
			found = i
		}
	}
	return found
}

// strike begins a fault and returns what ends it; nil if it could not strike.
func (w *world) strike(f fault) (end func()) {
	if onReplica(f.Kind) {
		r := w.replicas[f.Replica]
		if f.Kind == faultLostLeader || f.Kind == faultDeadLeader {
			r = w.leader(r)
		}
		if !r.process().alive() || r.down {
			return nil // it is gone, or is just ending: frozen it would not
		}
		if now := time.Now(); f.Kind != faultKill && f.Kind != faultDeadLeader && !w.timeline.healthy(awake(r), now, now) {
			return nil // a frozen process does not even end
		}
		w.note("%s %s for %s", f.Kind, r.name, f.Lasts.Round(time.Millisecond))
		return w.strikeReplica(f, r)
	}
	w.note("%s", f)
	nothing := func() {}
	switch f.Kind {
	case faultCrash:
		if w.stopped {
			return nil
		}
		w.timeline.ill(partServer)
		w.timeline.ill(partWriters)
		w.stopped = true
		w.cluster.StopImmediate(w.t)
		return func() {
			w.cluster.Start(w.t)
			w.stopped = false
			w.timeline.well(partServer)
			w.timeline.well(partWriters)
			w.backs = append(w.backs, time.Now())
			w.note("postgres is back")
		}
	case faultTerminate:
		w.terminate(fmt.Sprintf("application_name LIKE 'reconciler%%' AND random() < %f", 1/float64(1+f.At.Milliseconds()%3)))
		return nothing
	case faultWriters:
		w.timeline.ill(partWriters)
		w.terminate("application_name = '" + writerName + "' AND random() < 0.5")
		w.timeline.well(partWriters)
		return nothing
	case faultDisk:
		w.disk.fill()
		return w.disk.free
	}
	if w.plan.has(f.Kind) {
		return w.strikeNovel(f)
	}
	return w.strikeTarget(f)
}

func (w *world) strikeReplica(f fault, r *replica) (end func()) {
	p := r.process()
	switch f.Kind {
	case faultKill, faultDeadLeader:
		w.lose(r, false)
		r.down = true
		p.signal(syscall.SIGKILL)
		return func() {
			r.down = false
			<-p.exited
			w.revive(r)
		}
	case faultTerm:
		r.down = true
		p.signal(syscall.SIGTERM)
		return func() {
			r.down = false
			w.awaitEnd(r, p)
			w.revive(r)
		}
	case faultFreeze, faultLostLeader:
		w.timeline.ill(r.name)
		w.timeline.ill(awake(r))
		w.lose(r, true)
		p.signal(syscall.SIGSTOP)
		return func() {
			p.signal(syscall.SIGCONT)
			w.timeline.well(awake(r))
			w.timeline.well(r.name)
			w.note("%s goes on", r.name)
		}
	}
	w.timeline.ill(r.name)
	mend := map[string][2]func(){
		faultCut:      {func() { r.proxy.refuse(true); r.proxy.cutAll() }, func() { r.proxy.refuse(false) }},
		faultDelay:    {func() { r.proxy.slow(20 * time.Millisecond) }, func() { r.proxy.slow(0) }},
		faultHalfOpen: {r.proxy.freeze, func() { w.endHalfOpen(f, r) }},
		faultCutSome:  {func() { r.proxy.cutSome(w.hostile) }, func() {}},
		faultDeadSome: {func() { r.proxy.deaden(w.hostile) }, r.proxy.cutDead},
	}[f.Kind]
	mend[0]()
	return func() {
		mend[1]()
		w.timeline.well(r.name)
		w.note("%s of %s has ended", f.Kind, r.name)
	}
}

// endHalfOpen ends a half-open connection in one of two ways: what was kept back arrives after all, or it never does.
func (*world) endHalfOpen(f fault, r *replica) {
	if f.At.Milliseconds()%2 == 0 {
		r.proxy.cutAll()
	}
	r.proxy.thaw()
}

func (w *world) strikeTarget(f fault) (end func()) {
	e := w.endpoints[f.Target]
	nothing := func() {}
	switch f.Kind {
	case faultRough:
		e.weather(0.7, false)
		return func() { e.weather(e.plan.Share, false) }
	case faultLateWord:
		return w.strikeLateWord(e)
	case faultDown:
		w.timeline.ill(e.plan.Name)
		e.weather(0, true)
		return func() {
			e.weather(e.plan.Share, false)
			w.timeline.well(e.plan.Name)
		}
	case faultPause:
		w.timeline.ill(e.plan.Name)
		w.order(`SELECT reconciler.pause($1, 'test')`, e.plan.Name)
		return func() { // settle resumes what cannot be resumed now
			if w.order(`SELECT reconciler.resume($1)`, e.plan.Name) {
				w.timeline.well(e.plan.Name)
			}
		}
	case faultResync:
		w.order(`SELECT reconciler.resync($1)`, e.plan.Name)
		return nothing
	case faultRetry:
		w.order(`SELECT reconciler.retry($1)`, e.plan.Name)
		return nothing
	}
	return nil
}

// strikeLateWord keeps the line of a target's owner from passing anything while calls are under way. What the owner has to
// say of them stands in the line, and is said when it ends: long after the lease.
func (w *world) strikeLateWord(e *endpoint) (end func()) {
	r := w.owner(e.plan.Name)
	if r == nil {
		return nil
	}
	const slow = 500 * time.Millisecond
	e.lag(slow)
	pass(slow/2, w.t.Context().Done()) // the prober's calls are under way
	w.timeline.ill(r.name)
	r.proxy.freeze()
	e.lag(0)
	w.note("the line of %s, which owns %s, passes nothing", r.name, e.plan.Name)
	return func() {
		r.proxy.thaw()
		w.timeline.well(r.name)
		w.note("the line of %s passes everything again", r.name)
	}
}

// order gives an order in SQL. While the server is away, or before anybody lists the target, it cannot be given.
func (w *world) order(sql string, args ...any) (obeyed bool) {
	err := w.once(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, args...)
		return err
	})
	if err != nil {
		w.note("not obeyed: %v", err)
	}
	return err == nil
}

func (w *world) terminate(which string) {
	w.order(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND ` + which)
}

// reviveAll starts what ended because it found no database, as a service manager would.
func (w *world) reviveAll() {
	for _, r := range w.replicas {
		if !r.down {
			w.revive(r)
		}
	}
}

// allUp waits until every process has started. One that began while it had no database may still give up after the fault
// has ended, and is started again.
func (w *world) allUp() {
	for begun := time.Now(); time.Since(begun) < patience; pass(100*time.Millisecond, w.t.Context().Done()) {
		w.reviveAll()
		if !slices.ContainsFunc(w.replicas, func(r *replica) bool {
			p := r.process()
			return !r.down && (!p.alive() || !p.hasStarted())
		}) {
			return
		}
	}
	w.violate("start", "not all processes have started after %s", patience)
}

// revive starts a process where none is.
func (w *world) revive(r *replica) {
	if !r.process().alive() {
		r.start(w.arm())
	}
}

// arm returns where the next process is to die: mostly nowhere, and nowhere in the end.
func (w *world) arm() string {
	if w.disarmed || w.chance.IntN(3) > 0 {
		return ""
	}
	places := slices.DeleteFunc(crash.All(), func(p crash.Place) bool {
		return slices.Contains(rolloutPoints, p.Name) || slices.Contains(agentPoints, p.Name)
	})
	name, visit := places[w.chance.IntN(len(places))].Name, 1+w.chance.IntN(6)
	if w.plan.Applies > 0 && w.points.IntN(3) == 0 {
		name, visit = rolloutPoints[w.points.IntN(len(rolloutPoints))], 1+w.points.IntN(3)
	}
	return fmt.Sprintf("%s:kill:%d", name, visit)
}

// disarm replaces the processes that could still die by themselves.
func (w *world) disarm() {
	w.disarmed = true
	for _, r := range w.replicas {
		p := r.process()
		if p.armed == "" {
			continue
		}
		w.end(r)
	}
	w.reviveAll()
}

// end ends a replica's process in good order.
func (w *world) end(r *replica) {
	p := r.process()
	p.signal(syscall.SIGTERM)
	w.awaitEnd(r, p)
}

func (w *world) awaitEnd(r *replica, p *process) {
	if !p.ends(15 * time.Second) {
		w.violate("stop", "%s (process %d) does not end after SIGTERM", r.name, p.pid)
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
}

// leader returns the replica that leads, as far as one does that is well.
func (w *world) leader(otherwise *replica) *replica {
	if r := w.owner("tick"); r != nil {
		return r
	}
	return otherwise
}

// owner returns the replica that has a lease, if one has that is well.
func (w *world) owner(lease string) *replica {
	name, pid := w.owners.now(lease)
	for _, r := range w.replicas {
		if p := r.process(); name && p.alive() && p.pid == pid && w.timeline.healthy(r.name, time.Now(), time.Now()) {
			return r
		}
	}
	return nil
}
