package agent

import (
	"cmp"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// Status is how an agent stands, as GET /status shows it.
type Status struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Server  string   `json:"server"`
	Targets []Target `json:"targets"`
}

// State is what a target is in, as one word.
type State string

// The states of a target. Only StateOK is one without anything to do.
const (
	StateOK        State = "ok"        // every object is as the stream wants it
	StateStarting  State = "starting"  // the objects are not complete yet
	StatePending   State = "pending"   // objects wait for a call
	StateFailing   State = "failing"   // calls for objects fail
	StateHeld      State = "held"      // deletes wait for approval
	StatePaused    State = "paused"    // by reconciler.pause
	StateSuspended State = "suspended" // the far side does not answer, asks for no calls, or may work on those of a killed process
	StateAway      State = "away"      // the server cannot be reached; work goes on
	StateRefused   State = "refused"   // the server refuses the target, and is asked again; work goes on
	StateStopped   State = "stopped"   // the state is that of another stream; see --adopt
)

// Target is how a target stands. Times are zero, and left out, until there is one.
type Target struct {
	Target   string `json:"target"`
	State    State  `json:"state"`
	Driver   string `json:"driver"`
	Objects  int    `json:"objects"`
	Pending  int    `json:"pending"`
	Failing  int    `json:"failing"`
	Held     int    `json:"held"`
	Revision int64  `json:"revision"` // every change up to it is in the objects; 0: not known
	// Trouble is what is wrong with the far side or with the agent; Server what is wrong with the connection.
	Trouble string `json:"trouble,omitempty"`
	Server  string `json:"server,omitempty"`
	Healthy *bool  `json:"healthy,omitempty"` // what the driver reported; not there: it cannot tell

	LastFrame  time.Time `json:"last_frame,omitzero"`
	LastReport time.Time `json:"last_report,omitzero"`
	LastSync   time.Time `json:"last_sync,omitzero"`

	ready string // why it is not; "": it is
}

// status returns how the target stands.
func (t *target) status() Target {
	t.mu.Lock()
	s, problem, since, stopped := t.session, t.problem, t.since, t.stopped
	st := Target{
		Target: t.cfg.Name, Driver: t.cfg.Driver, Healthy: t.health.is, LastReport: t.report, LastSync: t.synced, State: StateStarting,
	}
	if t.objects != nil {
		st.Healthy = t.objects.healthy()
	}
	ailment := cmp.Or(t.unlist, t.blind, t.health.ailment)
	t.mu.Unlock()
	if s == nil {
		st.ready = "starting"
		return st
	}
	followed, does := s.informer.Status(), s.controller.Status()
	st.Objects, st.Revision, st.LastFrame = followed.Objects, followed.Revision, followed.LastFrame
	st.Pending, st.Failing, st.Held = does.Queued+does.Running+t.calls.waiting(), does.Failing, does.Held+t.asked.held()
	st.Trouble = t.trouble(s, followed, ailment)
	if followed.Waiting == "" && followed.LastFrame.After(since) {
		problem = nil // it is served again
	}
	if problem != nil {
		st.Server = problem.Error()
	} else {
		st.Server = followed.Waiting
	}
	st.State, st.ready = s.state(st, followed, problem != nil, stopped)
	return st
}

// state is the first of what a target may be in, and why it is not ready.
func (s *session) state(st Target, followed client.Status, refused, stopped bool) (state State, unready string) {
	shut := s.shutFor()
	switch {
	case stopped:
		return StateStopped, st.Server
	case refused:
		return StateRefused, st.Server
	case !followed.Synced:
		return StateStarting, "the objects are not complete: " + followed.Waiting
	case followed.Err != nil:
		unready = followed.Err.Error()
	case shut != "":
		unready = shut
	}
	switch {
	case shut != "":
		return StateSuspended, unready
	case s.informer.Controls().Paused:
		return StatePaused, unready
	case st.Server != "":
		return StateAway, unready
	case st.Failing > 0:
		return StateFailing, unready
	case st.Held > 0:
		return StateHeld, unready
	case st.Pending > 0:
		return StatePending, unready
	case st.Trouble != "":
		return StateFailing, unready
	}
	return StateOK, unready
}

// trouble is what is wrong with the far side as a whole, or with the state of the agent.
func (t *target) trouble(s *session, followed client.Status, ailment string) string {
	if shut := s.shutFor(); shut != "" {
		return shut
	}
	if text := t.slow.Trouble(); text != "" {
		return text
	}
	if troubled, ok := t.drv.(driver.Troubled); ok {
		var err error
		if panicked := driver.Safely(func() error { err = troubled.Trouble(); return nil }); panicked != nil {
			err = panicked
		}
		if err != nil {
			return short(err)
		}
	}
	if followed.Err != nil {
		return followed.Err.Error()
	}
	return ailment
}

// Status returns how the agent stands.
func (a *Agent) Status() Status {
	cfg := a.opts.Config.Agent
	st := Status{Name: cfg.Name, Version: a.opts.Version, Server: cfg.Server, Targets: make([]Target, len(a.targets))}
	for i, t := range a.targets {
		st.Targets[i] = t.status()
	}
	return st
}
