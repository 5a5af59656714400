package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
)

// host is a place where an agent runs, which calls for one target or more: one process at a time, whose state may be lost with it.
type host struct {
	*replica

	targets []targetPlan
	line    *line
	state   string // directory
	backup  string // directory with an older copy of it, if it is there
	loses   bool   // the state, now and then
	r       *rand.Rand

	calm, over chan struct{} // closed when faults end, and when the agent is to end
	left       chan struct{} // closed when it has
}

// addHost adds the host of an agent.
func (w *world) addHost(number int, targets []targetPlan) {
	w.t.Helper()
	name := fmt.Sprintf("agent-%d", number)
	h := &host{
		targets: targets, state: filepath.Join(w.dir, "state-"+name), backup: filepath.Join(w.dir, "backup-"+name), r: w.plan.stream(streamHosts + 1 + uint64(number)),
		calm: make(chan struct{}), over: make(chan struct{}), left: make(chan struct{}),
	}
	h.loses = h.r.IntN(2) == 0
	var err error
	h.line, err = newLine(w)
	require.NoError(w.t, err)
	h.replica = &replica{world: w, name: name, binary: binary, config: filepath.Join(w.dir, name+".yaml")}
	h.configure()
	w.hosts = append(w.hosts, h)
	w.timeline.ill(h.name) // until it has started
	w.t.Cleanup(func() {
		for _, p := range h.all {
			p.signal(syscall.SIGKILL)
			<-p.exited
		}
		h.line.close()
	})
}

func (h *host) configure() {
	type options = map[string]any
	var targets []options
	for _, t := range h.targets {
		targets = append(targets, options{
			"name": t.Name, "driver": t.Driver, "concurrency": t.Concurrency, "timeout": t.Timeout.String(),
			"sync_interval": t.Sync, "backoff": options{"min": "50ms", "max": t.BackoffMax.String()}, "options": h.world.driverOptions(t),
		})
	}
	text, err := json.MarshalIndent(options{
		"server": h.line.url, "name": h.name, "state_dir": h.state, "listen": "127.0.0.1:0", "shutdown_timeout": "5s",
		"log": options{"level": "info", "format": "json"}, "targets": targets,
	}, "", "  ")
	require.NoError(h.world.t, err)
	require.NoError(h.world.t, os.WriteFile(h.config, text, 0o600))
}

// hostFaults are what strikes an agent, how often, and for how long.
var hostFaults = []weight{
	{faultKill, 6, 50 * time.Millisecond, 6 * time.Second},
	{faultFreeze, 3, 50 * time.Millisecond, 3 * time.Second},
	{faultFreeze, 1, 11 * time.Second, 14 * time.Second},
	{faultTerm, 3, 50 * time.Millisecond, 3 * time.Second},
}

// live runs the agent, lets faults strike until calm, and ends it in good order when the world is over. quiet ends it in any case.
func (h *host) live(quiet <-chan struct{}) {
	defer close(h.left)
	for next := time.Now(); ; pass(100*time.Millisecond, quiet) {
		select {
		case <-quiet:
			return
		case <-h.over:
			h.world.end(h.replica)
			return
		case <-h.calm:
			if p := h.process(); p.alive() && (p.armed != "" || p.refused()) { // one of its targets may go on
				h.world.end(h.replica)
			}
			h.revive("")
		default:
			h.revive(h.arm())
			if time.Now().After(next) {
				h.strike(quiet)
				next = time.Now().Add(between(h.r, 500*time.Millisecond, 5*time.Second))
			}
		}
	}
}

// revive starts an agent where none is.
func (h *host) revive(armed string) {
	before := h.process()
	if before.alive() {
		return
	}
	h.args = []string{"agent"}
	if before.refused() {
		h.args = append(h.args, "--adopt")
		h.world.count("streams that an agent was told to adopt", 1)
	}
	h.world.count("lives of agent processes", 1)
	h.start(armed)
}

// arm returns where the next agent is to die: mostly nowhere.
func (h *host) arm() string {
	if h.r.IntN(3) > 0 {
		return ""
	}
	points := []crash.Name{crash.AgentBeforeCall, crash.AgentAfterCall}
	return string(points[h.r.IntN(len(points))]) + ":kill:" + []string{"1", "2", "5", "20", "50"}[h.r.IntN(5)]
}

// strike lets one fault strike, and end.
func (h *host) strike(quiet <-chan struct{}) {
	w, p := h.world, h.process()
	total := 0
	for _, f := range hostFaults {
		total += f.times
	}
	n, i := h.r.IntN(total), 0
	for ; n >= hostFaults[i].times; i++ {
		n -= hostFaults[i].times
	}
	f := hostFaults[i]
	lasts, lose := between(h.r, f.least, f.most), h.loses && h.r.IntN(2) == 0
	if !p.alive() || !p.hasStarted() {
		return
	}
	w.note("%s %s for %s", f.kind, h.name, lasts.Round(time.Millisecond))
	w.count(f.kind+" of an agent", 1)
	if f.kind == faultFreeze {
		w.timeline.ill(h.name)
		w.timeline.ill(awake(h.replica))
		p.signal(syscall.SIGSTOP)
		pass(lasts, either(quiet, h.calm))
		p.signal(syscall.SIGCONT)
		w.timeline.well(awake(h.replica))
		w.timeline.well(h.name)
		w.note("%s goes on", h.name)
		return
	}
	if f.kind == faultTerm {
		w.end(h.replica)
	} else {
		p.signal(syscall.SIGKILL)
		<-p.exited
	}
	if err := h.change(lose); err != nil {
		w.violate("tester", "%v", err)
	}
	pass(lasts, either(quiet, h.calm))
}

// change keeps a copy of the state, unless there is one. If the state is to be lost, it takes it away, or puts the older copy in its place.
func (h *host) change(lose bool) error {
	_, err := os.Stat(h.backup)
	first := errors.Is(err, fs.ErrNotExist)
	if first {
		err = os.CopyFS(h.backup, os.DirFS(h.state))
	}
	if !lose || err != nil {
		return err
	}
	if first || h.r.IntN(3) == 0 {
		h.world.note("the state of %s is lost", h.name)
		h.world.count("states of agents lost", 1)
		return os.RemoveAll(h.state)
	}
	h.world.note("%s has an older state", h.name)
	h.world.count("states of agents rolled back", 1)
	for _, t := range h.targets {
		h.world.timeline.ill(stateOf(t.Name))
		h.world.timeline.well(stateOf(t.Name))
	}
	return errors.Join(os.RemoveAll(h.state), os.Rename(h.backup, h.state))
}

// stateOf is the part of a world that is ill for a moment when the agent of a target gets an older state.
func stateOf(target string) string { return "state for " + target }

// calls reports whether the agent calls for a target.
func (h *host) calls(target string) bool {
	return slices.ContainsFunc(h.targets, func(t targetPlan) bool { return t.Name == target })
}

// refused reports whether an agent has given a target up because the server has another stream than its state.
func (p *process) refused() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.lines, func(line string) bool { return strings.Contains(line, "start the agent once with --adopt") })
}

// hostsUp waits until every agent has started, and dies no more.
func (w *world) hostsUp() {
	for _, h := range w.hosts {
		for begun := time.Now(); ; pass(100*time.Millisecond, w.t.Context().Done()) {
			if p := h.process(); p.alive() && p.hasStarted() && p.armed == "" {
				break
			}
			if time.Since(begun) > patience {
				w.violate("start", "%s has not started after %s", h.name, patience)
				return
			}
		}
	}
}

// leaveHosts ends the agents in good order.
func (w *world) leaveHosts() {
	for _, h := range w.hosts {
		p := h.process()
		close(h.over)
		<-h.left
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			w.violate("stop", "%s (process %d) ended with %d after SIGTERM", h.name, p.pid, code)
		}
	}
}

// either is closed with one of two channels, or never.
func either(a, b <-chan struct{}) <-chan struct{} {
	first := make(chan struct{})
	go func() {
		defer close(first)
		select {
		case <-a:
		case <-b:
		}
	}()
	return first
}

// index returns the place of a target.
func (p *plan) index(target string) int {
	return slices.IndexFunc(p.Targets, func(t targetPlan) bool { return t.Name == target })
}

// adopts reports whether a world has faults after which a target has another stream, which an agent follows only with --adopt.
func (w *world) adopts() bool {
	return slices.ContainsFunc([]string{faultStartOver, faultReload, faultFailover, faultDrain, faultClock}, w.plan.has)
}
