package faults_test

import (
	"fmt"
	"slices"
	"time"
)

// rollout is an apply as the database shows it.
type rollout struct {
	ID        int64
	Xid       string
	Strategy  string
	OnFailure string `json:"on_failure"`
	Wish      string
	Released  bool
	State     string
	Version   int64
	Committed time.Time
	Opened    *time.Time `json:"opened_at"`
	Error     *string    `json:"error_message"`
	Parts     []rolloutPart
	Log       []rolloutEntry
	Events    []int64 // of its ends, in the outbox
}

// rolloutPart is an operation.
type rolloutPart struct {
	Target                                          string
	State                                           string
	Open                                            bool `json:"is_open"`
	Done                                            bool
	Unproven                                        bool // something failed there and has not been applied since
	Budget                                          int
	Tasks, Completed, Failed, Superseded, Cancelled int
	Started                                         *time.Time `json:"started_at"`
	Objects                                         []rolloutTask
}

type rolloutTask struct {
	object

	State    string
	Seq      int64
	Attempts int
}

// rolloutEntry is a row of an apply's log.
type rolloutEntry struct {
	ID      int64
	Version int64
	At      time.Time
	What    string
	Was     string
	State   string
}

func isEnd(state string) bool {
	return slices.Contains([]string{"completed", "superseded", "failed", "cancelled"}, state)
}

func (a rollout) terminal() bool { return isEnd(a.State) }

// holds says whether an apply that has ended keeps objects from following their rows.
func (a rollout) holds() bool {
	return slices.ContainsFunc(a.Parts, func(p rolloutPart) bool { return !p.Done })
}

// closed says whether it does so until somebody lets them go.
func (a rollout) closed() bool {
	return slices.ContainsFunc(a.Parts, func(p rolloutPart) bool { return !p.Done && !p.Open })
}

func (a rollout) String() string {
	text := fmt.Sprintf("apply %d (%s, on_failure %s, wish %s) is %s, version %d", a.ID, a.Strategy, a.OnFailure, a.Wish, a.State, a.Version)
	for _, p := range a.Parts {
		text += fmt.Sprintf("; %s is %s, open %v, done %v: %d tasks, %d completed, %d failed, %d superseded, %d cancelled",
			p.Target, p.State, p.Open, p.Done, p.Tasks, p.Completed, p.Failed, p.Superseded, p.Cancelled)
	}
	return text
}

// derived is the state that an apply should have, by the states of its operations.
func (a rollout) derived() string {
	n := map[string]int{}
	troubled, halts := false, false
	for _, p := range a.Parts {
		n[p.State]++
		overtaken := p.State == "superseded" && p.Unproven
		troubled, halts = troubled || p.Failed > 0 || overtaken, halts || p.State == "failed" || overtaken
	}
	unsettled := n["pending"] + n["running"] + n["stopping"] + n["stopped"]
	goesOn := "running"
	if troubled {
		goesOn = "degraded"
	}
	switch {
	case unsettled == 0 && n["failed"]+n["halted"] > 0:
		return "failed"
	case unsettled == 0 && n["cancelled"] > 0:
		return "cancelled"
	case unsettled == 0 && n["superseded"] > 0:
		return "superseded"
	case unsettled == 0:
		return "completed"
	case a.Wish == "cancel", a.Wish == "stop" && n["stopped"] < unsettled:
		return "stopping"
	case n["stopped"] == unsettled:
		return "stopped"
	case n["running"] > 0:
		return goesOn
	case n["stopping"] > 0:
		return "stopping"
	case a.Wish == "pause", a.OnFailure == "pause" && halts && !a.Released:
		return "paused"
	case n["pending"] == len(a.Parts):
		return "pending"
	}
	return goesOn
}

// reason is why it has failed, as far as it says.
func (a rollout) reason() string {
	if a.Error == nil {
		return "no reason is given"
	}
	return *a.Error
}

func wrong(a rollout, what, format string, args ...any) violation {
	return violation{What: what, Text: a.String() + ": " + fmt.Sprintf(format, args...)}
}

// wrongStates finds applies whose state does not follow from their operations: at any moment, for both change in one transaction.
func wrongStates(all []rollout) (found []violation) {
	for _, a := range all {
		switch {
		case a.Opened == nil && a.State != "pending":
			found = append(found, wrong(a, "apply state", "its objects are not known yet"))
		case a.Opened != nil && a.State == "failed" && len(a.Parts) == 0:
			found = append(found, wrong(a, "apply not opened", "%s", a.reason()))
		case a.Opened != nil && a.State != a.derived():
			found = append(found, wrong(a, "apply state", "it should be %s", a.derived()))
		}
	}
	return found
}

// wrongLogs finds logs with a version that is missing, and changes of state that do not follow from one another.
func wrongLogs(all []rollout) (found []violation) {
	for _, a := range all {
		version, state := int64(1), "pending"
		for _, e := range a.Log {
			if version++; e.Version != version {
				found = append(found, wrong(a, "apply log", "version %d of its log is missing, or is there twice", version))
				break
			}
			if e.What != "state" {
				continue
			}
			if e.Was != state || e.State == state {
				found = append(found, wrong(a, "apply log", "it was %s, and version %d of its log says from %s to %s", state, e.Version, e.Was, e.State))
			}
			state = e.State
		}
		if version != a.Version || state != a.State {
			found = append(found, wrong(a, "apply log", "its log ends with version %d and %s", version, state))
		}
	}
	return found
}

// wrongEvents finds ends that the outbox did not tell of exactly once.
func wrongEvents(all []rollout) (found []violation) {
	for _, a := range all {
		var ends []int64
		for _, e := range a.Log {
			if e.What == "state" && isEnd(e.State) && !isEnd(e.Was) {
				ends = append(ends, e.ID)
			}
		}
		if !slices.Equal(ends, a.Events) {
			found = append(found, wrong(a, "apply event", "its log has the ends %v, the outbox had %v", ends, a.Events))
		}
	}
	return found
}

// unrest finds applies that have not ended though nothing keeps them from it.
func unrest(all []rollout) (found []violation) {
	for _, a := range all {
		if a.State != "stopped" && a.State != "paused" && !a.terminal() {
			found = append(found, wrong(a, "apply rest", "everything is at rest"))
		}
	}
	return found
}

// wrongCounts finds operations whose counts are not those of their tasks, and tasks that were charged for more attempts than
// there were to have.
func wrongCounts(all []rollout) (found []violation) {
	for _, a := range all {
		for _, p := range a.Parts {
			n := map[string]int{}
			for _, o := range p.Objects {
				n[o.State]++
				if o.Attempts > p.Budget {
					found = append(found, wrong(a, "apply attempts", "%s has %d attempts, of %d", o.object, o.Attempts, p.Budget))
				}
			}
			have := [...]int{p.Tasks, p.Completed, p.Failed, p.Superseded, p.Cancelled}
			if want := [...]int{len(p.Objects), n["completed"], n["failed"], n["superseded"], n["cancelled"]}; have != want {
				found = append(found, wrong(a, "apply count", "the tasks in %s come to %v", p.Target, want))
			}
		}
	}
	return found
}

// holding is an object of an apply, in a target.
type holding struct {
	apply *rollout
	task  rolloutTask
	until time.Time // when the gate was opened for the first time; zero: it never was
}

// opened is when a target's gate may have been opened first: its operation began, or somebody let go what the apply
// held when it had ended.
func (a *rollout) opened(p rolloutPart) (at time.Time) {
	if p.Started != nil {
		at = *p.Started
	}
	ended := false
	for _, e := range a.Log {
		if e.What == "state" {
			ended = isEnd(e.State)
		}
		if e.What == "release" && ended && (at.IsZero() || e.At.Before(at)) {
			return e.At
		}
	}
	return at
}

// written is what a transaction of an apply did: the first version that it wrote of each row, as its place in the history.
type written struct {
	at    time.Time
	ranks map[component]int
}

// wrote returns what the apply's transaction did: nothing that there is a history of when it was a TRUNCATE of an empty table.
func (a *rollout) wrote(transactions map[string]written) written {
	if t, ok := transactions[a.Xid]; ok {
		return t
	}
	return written{at: a.Committed}
}

// brings says whether a call has what the transaction wrote, or something later; known: whether that can be said.
func (t written) brings(m *model, c call) (brings, known bool) {
	for row, version := range c.Versions {
		rank, wrote := t.ranks[row]
		known = known || wrote
		brings = brings || wrote && m.Ranks[row][version] >= rank
	}
	return brings, known
}

// earlyCalls finds calls that a gate should have held: an object of an apply keeps what its target has until the gate of its
// operation is opened for the first time, also when the operation is halted or cancelled and never opens.
//
// Looked at are calls with the version that the apply's transaction wrote, or a later one, and deletes of objects that were
// wanted for a while before it. What a newer apply of the same object may have brought is left out; which of two is newer is
// taken from both commits and seqs, for changes of base tables get theirs from the leader. Not looked at: parallel
// applies, which hold nothing, gates that are closed again by a stop or a retry, and files, which have no journal.
func earlyCalls(m *model, all []rollout, history []change, calls []call, forgotten func(time.Time) bool) (found []violation) {
	transactions := writtenBy(m, history)
	held := holdings(all)
	for _, c := range calls {
		for _, h := range held[c.Object] {
			if h.apply.Strategy == "parallel" || !h.until.IsZero() && !c.Begin.Before(h.until) || forgotten(c.Begin) {
				continue
			}
			mine := h.apply.wrote(transactions)
			if !early(m, c, mine) || newerExplains(m, c, h, held[c.Object], transactions) {
				continue
			}
			found = append(found, violation{
				"apply gate", fmt.Sprintf("%s\n  began before the gate was opened (at %s) for what was committed at %s, seq %d, in %s", c, clock(h.until), clock(mine.at), h.task.Seq, *h.apply),
				c.Object, c.Begin,
			})
		}
	}
	return found
}

// readBefore is how long before its call a row may have been read, and more.
const readBefore = 10 * time.Second

func clock(at time.Time) string { return at.UTC().Format("15:04:05.000000") }

// early says whether a call would be too early as long as the gate is closed.
func early(m *model, c call, mine written) bool {
	if !c.Delete {
		brings, _ := mine.brings(m, c)
		return brings
	}
	return c.Begin.After(mine.at) && !m.unwanted(c.Object, c.Begin.Add(-readBefore), mine.at.Add(-time.Microsecond))
}

// newerExplains says whether a newer apply of the object may have led to a call.
func newerExplains(m *model, c call, h holding, others []holding, transactions map[string]written) bool {
	mine := h.apply.wrote(transactions)
	return slices.ContainsFunc(others, func(o holding) bool {
		theirs := o.apply.wrote(transactions)
		if o.apply.ID == h.apply.ID || o.task.Seq < h.task.Seq && theirs.at.Before(mine.at) {
			return false
		}
		brings, known := theirs.brings(m, c)
		return brings || !known
	})
}

// writtenBy returns what each transaction wrote.
func writtenBy(m *model, history []change) map[string]written {
	all := map[string]written{}
	for _, c := range history {
		t, ok := all[c.Xid]
		if !ok {
			t = written{c.At, map[component]int{}}
			all[c.Xid] = t
		}
		if c.New == nil || c.Old != nil && c.Old.Version == c.New.Version { // nothing that a spec shows
			continue
		}
		row := component{c.Tab, c.New.Key}
		if rank, ok := t.ranks[row]; !ok || m.Ranks[row][c.New.Version] < rank {
			t.ranks[row] = m.Ranks[row][c.New.Version]
		}
	}
	return all
}

// holdings returns the tasks of all applies by object.
func holdings(all []rollout) map[object][]holding {
	held := map[object][]holding{}
	for i := range all {
		for _, p := range all[i].Parts {
			until := all[i].opened(p)
			for _, o := range p.Objects {
				held[o.object] = append(held[o.object], holding{&all[i], o, until})
			}
		}
	}
	return held
}
