package faults_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// briefSeeds are the worlds of `make test`: seeds that once failed, and whose faults end within 9 s.
var briefSeeds = []uint64{
	10096,  // wait() did not wait for a sync whose owner had handed its target over
	200110, // the first leader died before its cursor was kept, and changes of base tables since then were never expanded
}

// agentSeed is the world of `make test` with an agent, which calls a webhook and writes files. The daemon calls two webhooks itself.
const agentSeed = 83285

// clusterSeed is the world of `make test` with a Kubernetes cluster and people who change it.
const clusterSeed = 114480

// longSeeds are those of `make test/long` beside them.
var longSeeds = []uint64{
	212,   // svc/1 was applied by a first sync that a crash cut short, and its workspace vanished: an orphan
	201,   // the one that was to take a dead owner's target had lost its connection: nobody took it for 13 s
	328,   // a delete that the guard had let pass for one owner was carried out by the next
	315,   // the server crashed during the first sync, and the table was truncated: an orphan
	40521, // a call was not recorded, and the outbox outgrew its limit before the next owner had read of its object: an orphan
	60763, // a cursor below the floor went on at the newest tick, past changes that were left: an orphan
	60418, // a page's end below the floor came back as the cursor, and nothing changed any more: it did not come to rest
}

// TestWorlds lives through worlds: each seed makes one. See docs/testing.md.
func TestWorlds(t *testing.T) {
	t.Parallel()
	seeds, abreast := append(slices.Clone(briefSeeds), agentSeed, clusterSeed), 4
	if timed() {
		seeds, abreast = slices.Concat(longSeeds, seeds), *flagLanes
	}
	if *flagWorlds > 0 {
		seeds = make([]uint64, *flagWorlds)
		next := *flagSeed
		for i := range seeds {
			for *flagAgents && len(newPlan(next).hosts()) == 0 || *flagKube && !newPlan(next).kubernetes() {
				next++
			}
			seeds[i] = next
			next++
		}
	}
	report := newReport()
	queue := make(chan uint64, len(seeds))
	for _, seed := range seeds {
		queue <- seed
	}
	close(queue)
	var lanes sync.WaitGroup
	for i := range min(abreast, len(seeds)) {
		// Not t.Parallel: how many run at once is the flag's to say.
		lanes.Go(func() { t.Run(fmt.Sprintf("Lane%d", i), func(t *testing.T) { lane(t, queue, report) }) })
	}
	lanes.Wait()
	report.finish(t)
}

// timed reports whether worlds have a machine for themselves: then processes with wrong clocks are built, and bounds in
// seconds are checked.
func timed() bool { return pgtest.Long || *flagWorlds > 0 }

// lane runs one world after the other on a server of its own.
func lane(t *testing.T, seeds <-chan uint64, report *report) {
	cluster := pgtest.Server(t)
	rememberCommits(t, cluster)
	for seed := range seeds {
		var w *world
		t.Run(fmt.Sprintf("Seed%d", seed), func(t *testing.T) {
			w = newWorld(t, cluster, newPlan(seed))
			w.run()
			w.complain()
		})
		if w == nil {
			continue
		}
		report.add(t, w)
		if w.stopped && w.cluster == cluster { // it failed in the middle of a crash: the next ones shall not
			cluster.Start(t)
		}
	}
}

// report sums up a run. Its fields are written as JSON.
type report struct {
	mu         sync.Mutex          // guards what follows
	Worlds     int                 `json:"worlds"`
	Seeds      []uint64            `json:"seeds"`
	Seconds    float64             `json:"seconds"`
	Lanes      int                 `json:"lanes"`
	Faults     map[string]int      `json:"faults"`
	Counts     map[string]int      `json:"counts"`
	Peaks      map[string]int      `json:"peaks"`
	Recoveries map[string]*summary `json:"recoveries"`
	Violations []found             `json:"violations"`
	began      time.Time
}

type found struct {
	Seed uint64 `json:"seed"`
	What string `json:"what"`
	Text string `json:"text"`
}

func newReport() *report {
	return &report{Lanes: *flagLanes, Faults: map[string]int{}, Counts: map[string]int{}, Peaks: map[string]int{}, Recoveries: map[string]*summary{}, Violations: []found{}, began: time.Now()}
}

// add takes what a world has to say, and writes the report as it is by then.
func (r *report) add(t *testing.T, w *world) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Worlds++
	r.Seeds = append(r.Seeds, w.plan.Seed)
	r.Seconds = time.Since(r.began).Seconds()
	kinds := map[string]bool{faultDisk: true, faultLateWord: true}
	for _, w := range weights {
		kinds[w.kind] = true
	}
	for _, b := range blows {
		kinds[b.kind] = true
	}
	for _, n := range novelties {
		kinds[n.kind] = true
	}
	for what, n := range w.counts {
		if kinds[what] {
			r.Faults[what] += n
		} else {
			r.Counts[what] += n
		}
	}
	for what, n := range w.peaks {
		r.Peaks[what] = max(r.Peaks[what], n)
	}
	for _, recovery := range w.recoveries {
		s := r.Recoveries[recovery.Kind]
		if s == nil {
			s = &summary{}
			r.Recoveries[recovery.Kind] = s
		}
		took := recovery.Took.Seconds()
		s.Mean = (s.Mean*float64(s.Measured) + took) / float64(s.Measured+1)
		s.Measured++
		s.Max = max(s.Max, took)
		if recovery.late() {
			s.Late++
		}
	}
	for i, v := range w.violations {
		if i < shownMost {
			r.Violations = append(r.Violations, found{w.plan.Seed, v.What, clip(v.Text)})
		}
	}
	if *flagReport != "" {
		text, err := json.MarshalIndent(r, "", "  ")
		require.NoError(t, err)
		// Renamed, for it is read while the run goes on.
		require.NoError(t, os.WriteFile(*flagReport+".new", append(text, '\n'), 0o600))
		require.NoError(t, os.Rename(*flagReport+".new", *flagReport))
	}
}

// finish says in a few lines what the run was.
func (r *report) finish(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("%d worlds in %.0f s, %d calls, faults: %v", r.Worlds, r.Seconds, r.Counts["calls"], r.Faults)
	for kind, s := range r.Recoveries {
		t.Logf("%s: %s", kind, s)
	}
}
