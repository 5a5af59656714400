package faults_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kinds of faults of which a world has up to three, beside the others: what users, neighbours and operators of the same
// database do to it.
const (
	faultTruncate  = "truncate in flight"
	faultRedefine  = "track in flight"   // with another condition or spec
	faultUntrack   = "untrack in flight" // with release => delete, or with keep and track() again
	faultFleeting  = "fleeting resource" // track() and untrack(), or TRUNCATE and untrack(), in one transaction
	faultDrain     = "release in flight" // a target is given up, its objects are deleted
	faultSecurity  = "row security"      // on a tracked table, also for its owner
	faultTable     = "locked table"      // ACCESS EXCLUSIVE on a tracked table
	faultOutbox    = "read outbox"       // ACCESS SHARE on the outbox, as pg_dump takes it
	faultNumbers   = "taken numbers"     // a stranger holds the advisory locks of the product
	faultPauses    = "open pause"        // pause() of every target, in a transaction that stays open
	faultSwitch    = "open set_notify"   // as is set_notify()
	faultOpenTrack = "open track"        // as is track()
	faultCutSome   = "cut some"          // some connections of a process break
	faultDeadSome  = "half-open some"    // nothing passes on some connections of a process any more, and new ones work
	faultPooler    = "pooler paused"     // work goes through PgBouncer, which pauses
	faultClock     = "server clock"      // the server's clock jumps, and comes back
	faultStartOver = "start over"        // start_over()
	faultReload    = "dump and reload"   // into the same database, with the state of some seconds ago
	faultSettings  = "hostile settings"  // of the database, for every session
	faultRows      = "hostile rows"      // huge ones, odd ones, and such as cannot be objects
	faultFailover  = "failover"          // the primary crashes, and a standby that lags is promoted
)

// novelty is a kind of these faults.
type novelty struct {
	kind        string
	times       int           // it strikes up to so many times
	least, most time.Duration // for how long
}

var novelties = []novelty{
	{faultTruncate, 3, 100 * time.Millisecond, time.Second},
	{faultRedefine, 3, 100 * time.Millisecond, time.Second},
	{faultUntrack, 2, 500 * time.Millisecond, 2 * time.Second},
	{faultFleeting, 2, 0, 1},
	{faultDrain, 1, 0, 1},
	{faultSecurity, 2, 500 * time.Millisecond, 4 * time.Second},
	{faultTable, 2, time.Second, 9 * time.Second},
	{faultOutbox, 2, time.Second, 9 * time.Second},
	{faultNumbers, 2, time.Second, 9 * time.Second},
	{faultPauses, 2, time.Second, 14 * time.Second},
	{faultSwitch, 2, time.Second, 9 * time.Second},
	{faultOpenTrack, 2, time.Second, 9 * time.Second},
	{faultCutSome, 4, 0, 1},
	{faultDeadSome, 2, 4 * time.Second, 20 * time.Second},
	{faultPooler, 2, 500 * time.Millisecond, 20 * time.Second},
	{faultClock, 3, 100 * time.Millisecond, 6 * time.Second},
	{faultStartOver, 2, 0, 1},
	{faultReload, 1, 0, 1},
	{faultSettings, 1, 0, 1},
	{faultRows, 2, 500 * time.Millisecond, 4 * time.Second},
	{faultFailover, 1, time.Second, 5 * time.Second},
}

// enabledNovelties are the kinds that this run may choose from: see -faults.kinds.
func enabledNovelties() []string {
	var some []string
	for _, n := range novelties {
		switch *flagKinds {
		case "none":
			continue
		case "all":
		case "default":
			if *flagWorlds == 0 { // `make test` lives with worlds as they once failed
				continue
			}
		default:
			if !slices.Contains(strings.Split(*flagKinds, ","), n.kind) {
				continue
			}
		}
		some = append(some, n.kind)
	}
	return some
}

// has says whether a kind of fault is among those that the world has beside the others.
func (p *plan) has(kind string) bool { return slices.Contains(p.Novel, kind) }

// addNovelties chooses among the kinds, and when they strike within the time of the other faults.
func (p *plan) addNovelties(r *rand.Rand, kinds []string, within time.Duration) {
	order := slices.Clone(novelties)
	r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	order = slices.DeleteFunc(order, func(n novelty) bool { return !slices.Contains(kinds, n.kind) })
	for _, n := range order[:min(len(order), 1+r.IntN(3))] {
		if slices.ContainsFunc(p.Novel, func(other string) bool { return conflict(n.kind, other) }) {
			continue
		}
		p.Novel = append(p.Novel, n.kind)
		at := time.Duration(0)
		for range 1 + r.IntN(n.times) {
			at += between(r, 500*time.Millisecond, within*2/3)
			if at > within {
				break
			}
			f := fault{At: at, Kind: n.kind, Lasts: between(r, n.least, n.most), Replica: r.IntN(p.Replicas), Target: r.IntN(len(p.Targets) - 1), Choice: r.IntN(1 << 20)}
			p.Faults = append(p.Faults, f)
			at += f.Lasts
		}
	}
	slices.SortStableFunc(p.Faults, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	if p.has(faultReload) || p.has(faultFailover) || p.has(faultClock) || p.has(faultStartOver) {
		p.Applies, p.Operator = 0, false // what the tester remembers of them is not undone, or in the time of the server
	}
	if p.has(faultClock) { // the minute of a guard is the server's
		for i := range p.Targets {
			p.Targets[i].MaxDeletes = -1
		}
	}
	if p.has(faultFailover) && r.IntN(2) == 0 {
		p.Notify = false // transactions are prepared, and forgotten by the failover
	}
	if p.has(faultSettings) { // its condition depends on the session's time zone
		p.Resources = append(p.Resources, "day")
	}
}
