package faults_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The oracles about applies, shown what must not be.

// release is an apply of one object in two targets that has come through t0 and is running in t1.
func release() rollout {
	opened, first, second := at(20.1), at(20.2), at(25)
	task := func(target, state string) []rolloutTask {
		return []rolloutTask{{object{target, "num", "7"}, state, 3, 1}}
	}
	return rollout{
		ID: 1, Xid: "202", Strategy: "rolling", OnFailure: "halt", Wish: "run", State: "running", Version: 4, Opened: &opened,
		Parts: []rolloutPart{
			{Target: "t0", State: "completed", Open: true, Done: true, Budget: 2, Tasks: 1, Completed: 1, Started: &first, Objects: task("t0", "completed")},
			{Target: "t1", State: "running", Open: true, Budget: 2, Tasks: 1, Started: &second, Objects: task("t1", "pending")},
		},
		Log: []rolloutEntry{
			{ID: 11, Version: 2, At: opened, What: "open"},
			{ID: 12, Version: 3, At: first, What: "state", Was: "pending", State: "running"},
			{ID: 13, Version: 4, At: second, What: "retry"},
		},
	}
}

// ended is the same when it is everywhere.
func ended() rollout {
	a := release()
	p := &a.Parts[1]
	p.State, p.Done, p.Completed, p.Objects[0].State = "completed", true, 1, "completed"
	a.State, a.Version, a.Events = "completed", 5, []int64{14}
	a.Log = append(a.Log, rolloutEntry{ID: 14, Version: 5, At: at(26), What: "state", Was: "running", State: "completed"})
	return a
}

// with returns an apply with something changed.
func with(a rollout, change func(*rollout)) []rollout {
	change(&a)
	return []rollout{a}
}

func TestWrongStatesOfAppliesAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrongStates([]rollout{release(), ended()}))
	for name, change := range map[string]func(*rollout){
		"another finished at the same time": func(a *rollout) { a.State = "running" },
		"it never was opened":               func(a *rollout) { a.Opened = nil },
		"one is running":                    func(a *rollout) { a.Parts[1].State = "running" },
		"one is stopping":                   func(a *rollout) { a.Parts[1].State = "stopping" },
		"one is halted":                     func(a *rollout) { a.Parts[1].State = "halted" },
	} {
		require.Equal(t, []string{"apply state"}, whats(wrongStates(with(ended(), change))), name)
	}
	require.Equal(t, []string{"apply not opened"}, whats(wrongStates(with(ended(), func(a *rollout) { a.State, a.Parts = "failed", nil }))))
}

// The table of docs/applies.md, and what commands change.
func TestStatesOfAppliesAreDerived(t *testing.T) {
	t.Parallel()
	type row struct {
		parts, onFailure, wish string
		released               bool
		want                   string
	}
	for _, r := range []row{
		{"p p", "halt", "run", false, "pending"},
		{"p c", "halt", "run", false, "running"},
		{"p f", "continue", "run", false, "degraded"},
		{"p f", "pause", "run", false, "paused"},
		{"p f", "pause", "run", true, "degraded"},
		{"p r", "halt", "pause", false, "running"},
		{"p c", "halt", "pause", false, "paused"},
		{"g s", "halt", "stop", false, "stopping"},
		{"s c", "halt", "stop", false, "stopped"},
		{"s x", "halt", "cancel", false, "stopping"},
		{"x c", "halt", "cancel", false, "cancelled"},
		{"x f", "halt", "cancel", false, "failed"},
		{"h f", "halt", "run", false, "failed"},
		{"c c", "halt", "run", false, "completed"},
		{"c f", "continue", "run", false, "failed"},
		{"c o", "halt", "run", false, "superseded"},
		{"o f", "halt", "run", false, "failed"},
		{"o x", "halt", "cancel", false, "cancelled"},
		{"p o", "pause", "run", false, "running"},
	} {
		a := rollout{OnFailure: r.onFailure, Wish: r.wish, Released: r.released}
		for _, letter := range []byte{r.parts[0], r.parts[2]} {
			state := map[byte]string{
				'p': "pending", 'r': "running", 'g': "stopping", 's': "stopped", 'c': "completed", 'f': "failed", 'h': "halted", 'x': "cancelled", 'o': "superseded",
			}[letter]
			p := rolloutPart{State: state}
			if letter == 'f' {
				p.Failed = 1
			}
			a.Parts = append(a.Parts, p)
		}
		require.Equal(t, r.want, a.derived(), fmt.Sprint(r))
	}
	require.Equal(t, "completed", rollout{Wish: "run"}.derived(), "nothing that is tracked was changed")
}

func TestWrongLogsOfAppliesAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrongLogs([]rollout{release(), ended()}))
	for name, change := range map[string]func(*rollout){
		"a version is missing":      func(a *rollout) { a.Log[3].Version, a.Version = 6, 6 },
		"a version is there twice":  func(a *rollout) { a.Log[3].Version = 4 },
		"the apply has another one": func(a *rollout) { a.Version = 6 },
		"a state is left out":       func(a *rollout) { a.Log[3].Was = "degraded" },
		"a state is the same":       func(a *rollout) { a.Log[3].State, a.State = "running", "running" },
		"the apply has another state": func(a *rollout) {
			a.State = "failed"
		},
	} {
		require.NotEmpty(t, wrongLogs(with(ended(), change)), name)
	}
}

func TestEndsOfAppliesWithoutEventAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrongEvents([]rollout{release(), ended()}))
	for name, events := range map[string][]int64{"none": nil, "two": {14, 14}, "of something else": {12}, "one too many": {12, 14}} {
		require.Equal(t, []string{"apply event"}, whats(wrongEvents(with(ended(), func(a *rollout) { a.Events = events }))), name)
	}
}

func TestAppliesThatDoNotEndAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, unrest([]rollout{ended()}))
	require.Empty(t, unrest(with(release(), func(a *rollout) { a.State = "stopped" })))
	require.Equal(t, []string{"apply rest"}, whats(unrest([]rollout{release()})))
}

func TestWrongCountsOfAppliesAreFound(t *testing.T) {
	t.Parallel()
	require.Empty(t, wrongCounts([]rollout{release(), ended()}))
	for name, change := range map[string]func(*rolloutPart){
		"a task counts twice":         func(p *rolloutPart) { p.Completed = 2 },
		"a task is not there":         func(p *rolloutPart) { p.Tasks = 2 },
		"a failed one counts as done": func(p *rolloutPart) { p.Objects[0].State = "failed" },
		"a superseded one is missed":  func(p *rolloutPart) { p.Objects[0].State, p.Completed = "superseded", 0 },
		"a cancelled one is missed":   func(p *rolloutPart) { p.Objects[0].State, p.Completed = "cancelled", 0 },
	} {
		require.Equal(t, []string{"apply count"}, whats(wrongCounts(with(ended(), func(a *rollout) { change(&a.Parts[1]) }))), name)
	}
	require.Equal(t, []string{"apply attempts"}, whats(wrongCounts(with(ended(), func(a *rollout) { a.Parts[1].Objects[0].Attempts = 3 }))))
}

// everywhere is the history of life, of a row that both targets have; its second version is that of release, its fourth one may
// be that of a newer apply.
func everywhere() (*model, []change) {
	row := func(running bool, version int64) *row {
		return &row{Resource: "num", Key: "7", Running: running, Version: version}
	}
	history := []change{
		{At: at(10), Seq: 1, Xid: "201", Tab: "num", New: row(true, 1)},
		{At: at(20), Seq: 2, Xid: "202", Tab: "num", Old: row(true, 1), New: row(true, 2)},
		{At: at(30), Seq: 3, Xid: "203", Tab: "num", Old: row(true, 2), New: row(false, 3)},
		{At: at(40), Seq: 4, Xid: "204", Tab: "num", Old: row(false, 3), New: row(true, 4)},
	}
	return newModel([]string{"t0", "t1"}, history), history
}

// in returns a call in another target.
func in(target string, c call) call {
	c.Object.Target = target
	return c
}

func noCrash(time.Time) bool { return false }

func TestCallsBeforeTheirGateAreFound(t *testing.T) {
	t.Parallel()
	m, history := everywhere()
	found := func(a []rollout, calls ...call) []string {
		return whats(earlyCalls(m, a, history, calls, noCrash))
	}
	early := []string{"apply gate"}
	running := []rollout{release()}
	require.Empty(t, found(running, apply(20.3, 2), in("t1", apply(25.1, 2)), in("t1", apply(41, 4))))
	require.Equal(t, early, found(running, in("t1", apply(24.9, 2))), "the other target's turn has not come")
	require.Empty(t, found(running, in("t1", apply(24.9, 1))), "what it was before")
	heartbeat := slices.Clone(history)
	heartbeat[1].Xid = "199"
	heartbeat = append(heartbeat, change{At: at(20), Seq: 5, Xid: "202", Tab: "num", Old: history[1].New, New: history[1].New})
	require.Empty(t, earlyCalls(m, running, heartbeat, []call{in("t1", apply(24.9, 2))}, noCrash), "it changed nothing that a spec shows")
	parallel := with(release(), func(a *rollout) { a.Strategy = "parallel" })
	require.Empty(t, found(parallel, in("t1", apply(20.3, 2))), "nothing is held")
	require.Empty(t, earlyCalls(m, running, history, []call{in("t1", apply(24.9, 2))}, func(time.Time) bool { return true }), "the claim was lost in a crash")

	back := with(release(), func(a *rollout) { a.Xid, a.Parts[1].Started = "204", nil })
	require.Equal(t, early, found(back, in("t1", remove(55))), "it was not wanted until the apply, and was deleted then")

	halted := with(release(), func(a *rollout) {
		a.State, a.Parts[1].State, a.Parts[1].Started = "failed", "halted", nil
		a.Log = append(a.Log, rolloutEntry{ID: 14, Version: 5, At: at(50), What: "state", Was: "running", State: "failed"})
	})
	require.Equal(t, early, found(halted, in("t1", apply(60, 2))), "nobody has let it go")
	require.Equal(t, early, found(halted, in("t1", apply(60, 4))), "a change after it")
	require.Equal(t, early, found(halted, in("t1", remove(35))), "a delete after it")
	require.Empty(t, found(halted, in("t1", remove(10.5))), "a delete before it")
	empty := with(halted[0], func(a *rollout) { a.Xid, a.Committed = "299", at(35) })
	require.Empty(t, found(empty, in("t1", remove(34))), "a TRUNCATE that found nothing came after it")
	released := with(halted[0], func(a *rollout) {
		a.Log = append(a.Log, rolloutEntry{ID: 15, Version: 6, At: at(55), What: "release"})
	})
	require.Empty(t, found(released, in("t1", apply(60, 2))))
	require.Equal(t, early, found(released, in("t1", apply(54, 2))))
}

func TestNewerAppliesExplainCalls(t *testing.T) {
	t.Parallel()
	m, history := everywhere()
	older := with(release(), func(a *rollout) { a.Parts[1].Started, a.Parts[1].Objects[0].State = nil, "superseded" })
	newer := release()
	newer.ID, newer.Xid, newer.Strategy = 2, "204", "parallel"
	newer.Parts[0].Objects, newer.Parts[1].Objects[0].Seq = nil, 9
	found := func(calls ...call) []string {
		return whats(earlyCalls(m, append(older, newer), history, calls, noCrash))
	}
	require.Empty(t, found(in("t1", apply(41, 4))), "it is the newer one's")
	require.Equal(t, []string{"apply gate"}, found(in("t1", apply(39, 2))), "before the newer one")
	older[0].Parts[1].Objects[0].Seq, older[0].Xid = 10, "204"
	newer.Xid = "202"
	require.Equal(t, []string{"apply gate"}, whats(earlyCalls(m, append(older, newer), history, []call{in("t1", apply(41, 4))}, noCrash)), "the other one is older")
}
