package faults_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kinds of faults, and of orders that people give meanwhile.
const (
	faultKill       = "kill"             // kill -9 of a replica, which starts again when the fault ends
	faultFreeze     = "freeze"           // SIGSTOP, then SIGCONT
	faultTerm       = "term"             // SIGTERM, and a new start
	faultCrash      = "postgres crash"   // immediate stop, and a new start
	faultTerminate  = "terminate"        // backends of the product end
	faultWriters    = "terminate writer" // backends of writers end
	faultCut        = "cut"              // a replica's connections break, and new ones are refused
	faultDelay      = "delay"            // everything between a replica and PostgreSQL takes longer
	faultHalfOpen   = "half-open"        // connections stay open and nothing passes
	faultRough      = "rough target"     // many calls of a target fail, each in a way of its own
	faultDown       = "target down"      // a target answers no call at all
	faultDisk       = "disk full"        // the file target has no room
	faultPause      = "pause"
	faultResync     = "resync"
	faultRetry      = "retry"
	faultLostLeader = "freeze leader" // as freeze, for longer than the lease, of the replica that leads then
	faultDeadLeader = "kill leader"   // as kill, of the replica that leads then
	faultLateWord   = "late word"     // what an owner has to say of its calls arrives when another one has its target
)

// fault is one fault of a plan.
type fault struct {
	At      time.Duration
	Lasts   time.Duration
	Kind    string
	Replica int // for the faults of one
	Target  int // for the faults of one
	Choice  int // for those that strike in one of several ways
}

func (f fault) String() string {
	text := fmt.Sprintf("%6.2fs %s", f.At.Seconds(), f.Kind)
	if onReplica(f.Kind) {
		text += fmt.Sprintf(" r%d", f.Replica)
	}
	if onTarget(f.Kind) {
		text += fmt.Sprintf(" t%d", f.Target)
	}
	if f.Lasts > 0 {
		text += fmt.Sprintf(" for %.2fs", f.Lasts.Seconds())
	}
	return text
}

func onReplica(kind string) bool {
	return slices.Contains([]string{faultKill, faultFreeze, faultTerm, faultCut, faultDelay, faultHalfOpen, faultLostLeader, faultDeadLeader, faultCutSome, faultDeadSome}, kind)
}

func onTarget(kind string) bool {
	return slices.Contains([]string{faultRough, faultDown, faultPause, faultResync, faultRetry, faultLateWord}, kind)
}

// targetPlan is one target of a world. The last one is of the driver file or stream, the others are webhooks with journals.
type targetPlan struct {
	Name        string
	Driver      string
	Fences      bool // refuses the calls of deposed owners
	MaxDeletes  int  // guard; -1: none
	Concurrency int
	Timeout     time.Duration
	Sync        string // sync_interval
	BackoffMax  time.Duration
	Share       float64 // of its calls that fail at any time
	Remote      bool    // an agent calls it, which follows its stream
	Host        int     // which agent that is
}

// plan is everything that a seed decides before its world begins. What runs side by side takes its own course: a seed
// gives the same world, and nearly the same history.
type plan struct {
	Seed      uint64
	Replicas  int
	Targets   []targetPlan
	Resources []string
	Notify    bool // off: transactions may be prepared
	Writers   int
	Bulk      int             // rows of a large transaction
	Lasts     time.Duration   // how long there are faults
	MaxRows   int             // retention of the outbox
	Shifts    []time.Duration // by which each replica's clock is wrong; one that is not 0 is of another build, too
	Disk      bool            // the file target has a small disk of its own, which fills up
	Honest    bool            // triggers see every write, and no sync makes up at last for what was missed
	Calm      time.Duration   // how long writers go on when the faults have ended
	Applies   int             // of how many transactions in a hundred writers make applies
	Operator  bool            // people give commands on them
	Novel     []string        // kinds of novelties
	Ack       bool            // the stream waits for an agent to report
	Faults    []fault
}

// stream returns a source of chance for one part of a world, so that one part's use of it changes no other's.
func (p *plan) stream(part uint64) *rand.Rand { return rand.New(rand.NewPCG(p.Seed, part)) }

func newPlan(seed uint64) *plan { return newPlanOf(seed, enabledNovelties()) }

// newPlanOf makes the plan of a seed, with novelties among these kinds.
func newPlanOf(seed uint64, novel []string) *plan {
	p := &plan{Seed: seed}
	r := p.stream(0)
	p.Replicas = 1 + r.IntN(3)
	p.Notify = r.IntN(4) > 0
	p.Writers = 2 + r.IntN(3)
	p.Bulk = 100 << r.IntN(4)
	p.Lasts = between(r, 6*time.Second, 14*time.Second)
	p.MaxRows = 1000 << (2 * r.IntN(4))
	kinds := []string{"num", "uid", "txt", "svc"}
	r.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	p.Resources = kinds[:2+r.IntN(3)]
	if !slices.Contains(p.Resources, "num") { // the prober's rows are of it
		p.Resources[0] = "num"
	}
	slices.Sort(p.Resources)
	webhooks := 1 + r.IntN(2)
	for i := range webhooks + 1 {
		p.Targets = append(p.Targets, newTarget(r, i))
	}
	p.Targets[webhooks].Driver = "file"
	// What was added later has a stream of its own, so that the worlds of older seeds are what they were but for that.
	more := p.stream(1)
	for range p.Replicas {
		p.Shifts = append(p.Shifts, []time.Duration{0, 0, 0, 0, 0, 0, time.Hour, -time.Hour}[more.IntN(8)])
	}
	p.Disk = more.IntN(6) == 0
	p.addAgents(p.stream(streamHosts))
	p.addKubernetes(p.stream(streamKubernetes))
	within := p.Lasts
	p.addFaults(r)
	if p.Disk {
		p.addDisk(more)
	}
	p.beHonest(p.stream(2))
	p.addLateWord(p.stream(3))
	if last := &p.Targets[len(p.Targets)-1]; p.streams() {
		last.Driver = "stream"
		p.Ack = p.stream(streamAgent).IntN(2) == 0
	}
	p.addApplies(p.stream(streamApplies))
	p.addNovelties(p.stream(streamNovelties), novel, within)
	return p
}

// beHonest makes half of the worlds such that nothing but events can bring about what is found at last: a lost one shows.
func (p *plan) beHonest(r *rand.Rand) {
	if p.Honest = r.IntN(2) == 0; !p.Honest {
		return
	}
	p.Calm = between(r, time.Second, 5*time.Second)
	for i := range p.Targets {
		p.Targets[i].Sync = "off"
	}
}

// addLateWord ends half of the worlds in which nothing else strikes alone with a word that comes late.
func (p *plan) addLateWord(r *rand.Rand) {
	last := p.Faults[len(p.Faults)-1].Kind
	struck := slices.ContainsFunc(blows, func(b blow) bool { return b.kind == last && b.kind != faultCrash })
	if p.Replicas == 1 || struck || r.IntN(2) == 0 {
		return
	}
	busy := map[string]time.Duration{}
	for i, f := range p.Faults {
		busy[fmt.Sprint(i)] = f.At + f.Lasts
	}
	p.addBlow(r, blow{weight{faultLateWord, 0, 13 * time.Second, 15 * time.Second}, 16 * time.Second}, busy)
	p.Faults[len(p.Faults)-1].Target = r.IntN(len(p.Targets) - 1)
}

// addDisk fills the disk of the file target for some time, in between the other faults.
func (p *plan) addDisk(r *rand.Rand) {
	f := fault{At: between(r, time.Second, 5*time.Second), Kind: faultDisk, Lasts: between(r, time.Second, 6*time.Second)}
	i, _ := slices.BinarySearchFunc(p.Faults, f, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	p.Faults = slices.Insert(p.Faults, i, f)
}

func newTarget(r *rand.Rand, number int) targetPlan {
	t := targetPlan{
		Name: fmt.Sprintf("t%d", number), Driver: "webhook", MaxDeletes: -1,
		Fences:      r.IntN(2) == 0,
		Concurrency: 1 << min(4, 1+r.IntN(5)),
		Timeout:     between(r, time.Second, 2*time.Second),
		Sync:        []string{"off", "2s", "5s", "1m"}[r.IntN(4)],
		BackoffMax:  between(r, 200*time.Millisecond, time.Second),
		Share:       []float64{0, 0.02, 0.1}[r.IntN(3)],
	}
	if r.IntN(4) == 0 {
		t.MaxDeletes = 1 + r.IntN(20)
	}
	return t
}

// weight says how often a kind of fault strikes, and for how long.
type weight struct {
	kind        string
	times       int
	least, most time.Duration
}

var weights = []weight{
	{faultKill, 6, 50 * time.Millisecond, 8 * time.Second},
	{faultFreeze, 4, 50 * time.Millisecond, 3 * time.Second},
	{faultFreeze, 1, 11 * time.Second, 14 * time.Second},
	{faultTerm, 4, 50 * time.Millisecond, 3 * time.Second},
	{faultCrash, 2, 50 * time.Millisecond, 2 * time.Second},
	{faultTerminate, 4, 0, 1},
	{faultWriters, 1, 0, 1},
	{faultCut, 3, 50 * time.Millisecond, 4 * time.Second},
	{faultDelay, 2, 500 * time.Millisecond, 4 * time.Second},
	{faultHalfOpen, 2, 500 * time.Millisecond, 6 * time.Second},
	{faultHalfOpen, 1, 11 * time.Second, 14 * time.Second},
	{faultRough, 5, 500 * time.Millisecond, 4 * time.Second},
	{faultDown, 2, 500 * time.Millisecond, 4 * time.Second},
	{faultPause, 2, 100 * time.Millisecond, 3 * time.Second},
	{faultResync, 3, 0, 1},
	{faultRetry, 1, 0, 1},
}

// addFaults fills the time of the world. Two faults may overlap, but not on one replica or target, and not two crashes.
func (p *plan) addFaults(r *rand.Rand) {
	total := 0
	for _, w := range weights {
		total += w.times
	}
	busy := map[string]time.Duration{}
	at := between(r, 500*time.Millisecond, 2*time.Second)
	blow := r.IntN(len(blows) * 2)
	for at < p.Lasts {
		n, i := r.IntN(total), 0
		for ; n >= weights[i].times; i++ {
			n -= weights[i].times
		}
		w := weights[i]
		f := fault{At: at, Kind: w.kind, Lasts: between(r, w.least, w.most), Replica: r.IntN(p.Replicas), Target: r.IntN(len(p.Targets) - 1)}
		what := f.Kind
		if onReplica(f.Kind) {
			what = fmt.Sprintf("r%d", f.Replica)
		} else if onTarget(f.Kind) {
			what = fmt.Sprintf("t%d", f.Target)
		}
		if busy[what] <= at {
			busy[what] = at + f.Lasts + 500*time.Millisecond
			p.Faults = append(p.Faults, f)
		}
		at += between(r, 50*time.Millisecond, 1200*time.Millisecond)
		if r.IntN(6) == 0 { // let it come to rest for once
			at += between(r, time.Second, 3*time.Second)
		}
	}
	if blow < len(blows) {
		p.addBlow(r, blows[blow], busy)
	}
}

// blow is a fault that strikes alone, so that the recovery from it can be measured.
type blow struct {
	weight

	alone time.Duration
}

var blows = []blow{
	{weight{faultDeadLeader, 0, 8 * time.Second, 11 * time.Second}, 12 * time.Second},
	{weight{faultLostLeader, 0, 14 * time.Second, 16 * time.Second}, 16 * time.Second},
	{weight{faultCrash, 0, 50 * time.Millisecond, 2 * time.Second}, 8 * time.Second},
}

// addBlow adds a fault when all others have ended, and nothing after it.
func (p *plan) addBlow(r *rand.Rand, b blow, busy map[string]time.Duration) {
	at := p.Lasts
	for _, until := range busy {
		at = max(at, until)
	}
	at += between(r, 3*time.Second, 5*time.Second) // who has just started does not lead at once
	p.Faults = append(p.Faults, fault{At: at, Kind: b.kind, Lasts: between(r, b.least, b.most), Replica: r.IntN(p.Replicas)})
	p.Lasts = at + b.alone
}

func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d replicas, resources %v, %d writers, bulk %d, notify %v, max_rows %d, %.1fs\n",
		p.Seed, p.Replicas, p.Resources, p.Writers, p.Bulk, p.Notify, p.MaxRows, p.Lasts.Seconds())
	fmt.Fprintf(&b, "  beside the others: %v\n", p.Novel)
	fmt.Fprintf(&b, "  clocks wrong by %v, disk %v, honest %v, %.1fs calm, %d%% applies, commands %v, ack %v\n", p.Shifts, p.Disk, p.Honest, p.Calm.Seconds(), p.Applies, p.Operator, p.Ack)
	for _, t := range p.Targets {
		fmt.Fprintf(&b, "  target %+v\n", t)
	}
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	return b.String()
}

// between returns a duration of at least least and less than most.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// pass lets time go by: it is what the test measures out, such as the moment of a kill. It ends early with done.
func pass(d time.Duration, done <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
