package faults_test

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// The oracles are functions of the journal and of what was committed. Each returns what it found wrong.

// fuzz is by how much a commit's timestamp may be earlier than the moment from which others see the commit.
const fuzz = time.Second

// isStale says whether a call carries an older state of a row than an earlier call did.
func isStale(m *model, before, c call) (component, bool) {
	for row, version := range c.Versions {
		last, both := before.Versions[row]
		if both && m.Ranks[row][version] < m.Ranks[row][last] {
			return row, true
		}
	}
	return component{}, false
}

// staleCalls finds calls with an older state than a call before them for the same object had, within one term, and
// revisions that fall within a term. I3.
func staleCalls(m *model, calls []call) (found []violation) {
	type place struct {
		o    object
		term int64
	}
	last := map[place]call{}
	applied := map[place]call{}
	for _, c := range calls {
		at := place{c.Object, c.Term}
		if before, ok := last[at]; ok && c.Revision < before.Revision {
			found = append(found, violation{"I3 revision", fmt.Sprintf("%s\n  came after %s", c, before), c.Object, c.Begin})
		}
		last[at] = c
		if c.Delete {
			continue
		}
		if before, ok := applied[at]; ok {
			if row, stale := isStale(m, before, c); stale {
				found = append(found, violation{"I3 stale", fmt.Sprintf("%s\n  has an older %v than %s", c, row, before), c.Object, c.Begin})
			}
		}
		applied[at] = c
	}
	return found
}

// steppedBack finds calls with an older state than a call of a former agent or owner had. One agent of a target runs at a time,
// and its state and its stream have what was called for, so the order holds across agents. An agent that gets an older copy of its state
// (rewound) cannot know of what was called for since, until the server answers it. Of publications the fence keeps the order. I3.
func steppedBack(m *model, calls []call, rewound func(target string, from, to time.Time) bool) (found []violation) {
	applied := map[object]call{}
	for _, c := range calls {
		if c.Delete {
			continue
		}
		before, ok := applied[c.Object]
		if ok && before.Term != c.Term && !rewound(c.Object.Target, before.Begin, c.Begin) { // within a term: see staleCalls
			if row, stale := isStale(m, before, c); stale {
				found = append(found, violation{"I3 agent", fmt.Sprintf("%s\n  has an older %v than %s", c, row, before), c.Object, c.Begin})
			}
		}
		applied[c.Object] = c
	}
	return found
}

// unknownSpecs finds calls with a state that was never committed.
func unknownSpecs(m *model, calls []call) (found []violation) {
	for _, c := range calls {
		if !c.Delete && len(c.Versions) == 0 {
			found = append(found, violation{"spec", fmt.Sprintf("%s\n  says nothing", c), c.Object, c.Begin})
		}
		for row, version := range c.Versions {
			if _, known := m.Ranks[row][version]; !known {
				found = append(found, violation{"spec", fmt.Sprintf("%s\n  has a version of %v that was never committed", c, row), c.Object, c.Begin})
			}
		}
	}
	return found
}

// notice is how much later than a client has gone its target may notice that.
const notice = 2 * time.Second

// overlaps finds two calls at once for one object. A call ends when its client has gone; the target may notice that a
// moment later. A call of a process that froze cannot be recalled: its successor's may overlap with it. I3, I10.
func overlaps(calls []call, frozen func(replica string, from, to time.Time) bool) (found []violation) {
	open := map[object][]call{}
	for _, c := range calls {
		var still []call
		for _, before := range open[c.Object] {
			if !before.Open && !before.End.After(c.Begin) {
				continue
			}
			still = append(still, before)
			switch {
			case !before.Open && before.Gone && before.End.Sub(c.Begin) < notice:
			case before.Term != c.Term && frozen(before.Replica, before.Begin, c.Begin):
			default:
				found = append(found, violation{"I3 overlap", fmt.Sprintf("%s\n  began during %s", c, before), c.Object, c.Begin})
			}
		}
		open[c.Object] = append(still, c)
	}
	return found
}

// deposed finds calls that began after a call of a later owner of the target, though their process was not frozen:
// calls begin only while their lease outlives them. I10.
func deposed(calls []call, frozen func(replica string, from, to time.Time) bool) (found []violation) {
	newest := map[string]call{}
	for _, c := range calls {
		before, ok := newest[c.Object.Target]
		if !ok || c.Term >= before.Term {
			if !ok || c.Term > before.Term {
				newest[c.Object.Target] = c
			}
			continue
		}
		if !frozen(c.Replica, before.Begin.Add(-20*time.Second), c.Begin) {
			found = append(found, violation{"I10 deposed", fmt.Sprintf("%s\n  began after %s", c, before), c.Object, c.Begin})
		}
	}
	return found
}

// baselessDeletes finds deletes of objects that were wanted all the time since they were last applied, and fuzz before. I5.
func baselessDeletes(m *model, calls []call, fuzz time.Duration) (found []violation) {
	applied := map[object]call{}
	terms := map[string]int64{}
	for _, c := range calls {
		late := c.Term < terms[c.Object.Target] // of a deposed owner: see deposed
		terms[c.Object.Target] = max(terms[c.Object.Target], c.Term)
		switch {
		case late:
		case !c.Delete:
			applied[c.Object] = c
		default:
			since := applied[c.Object].Begin // long ago, if it never was
			if !m.unwanted(c.Object, since.Add(-fuzz), c.Begin) {
				found = append(found, violation{"I5 delete", fmt.Sprintf("%s\n  was wanted all the time since %s", c, applied[c.Object]), c.Object, c.Begin})
			}
		}
	}
	return found
}

// guardWindow is less than the window of a guard (a minute): it counts a delete when it lets it pass, which may be a while
// before the call.
const guardWindow = 45 * time.Second

// unwritten is how long after its end a call may not be in the ledger yet.
const unwritten = time.Second

// guardBreaks finds deletes beyond what a guard by count lets pass, of each owner before anything was approved. A delete
// that an earlier owner tried has been counted by that one; and what the one before let pass and did not come to call,
// which is no more than it had left within a window, is carried out without being counted again. Nor does a guard count
// the delete of an object that the ledger does not know, which an owner makes when it reads events again: no apply was
// called for it, or only by a former owner that may have died before it wrote the result. And no
// guard holds deletes that untrack() with release => 'delete' has ordered. I6.
func guardBreaks(m *model, calls []call, target string, maxDeletes int, approved time.Time) (found []violation) {
	tried := map[object]int64{}  // by which owner first
	recent := map[int64][]call{} // the first calls for objects, of each owner
	counted := map[object]call{} // the last one that counted
	first := int64(math.MaxInt64)
	for _, c := range calls {
		if c.Object.Target == target {
			first = min(first, c.Term)
		}
	}
	former, last := first, first  // owners: the one before the last one, and that
	applied := map[object]call{}  // the last apply since the last delete that took effect
	ends := map[int64]time.Time{} // the last call of each owner, before the next one's first
	newest := first
	unknown := func(o object) bool {
		a, there := applied[o]
		return !there || a.Term != newest && ends[a.Term].Sub(a.End) < unwritten
	}
	recently := func(owner int64, c call) []call {
		return slices.DeleteFunc(slices.Clone(recent[owner]), func(before call) bool { return c.Begin.Sub(before.Begin) > guardWindow })
	}
	for _, c := range calls {
		if c.Object.Target != target || c.Begin.After(approved) {
			continue
		}
		if c.Term >= newest {
			newest, ends[c.Term] = c.Term, c.Begin
		}
		if !c.Delete {
			applied[c.Object] = c
			continue
		}
		unknown := unknown(c.Object)
		if c.Effect {
			delete(applied, c.Object)
		}
		if unknown || m.untracked(c.Object.Resource, c.Begin.Add(-keptCalls), c.Begin) {
			continue
		}
		if _, before := tried[c.Object]; !before {
			tried[c.Object] = c.Term
		}
		if earlier, again := counted[c.Object]; tried[c.Object] != c.Term || again && c.Begin.Sub(earlier.Begin) < guardWindow {
			continue
		}
		if c.Term > last {
			former, last = last, c.Term
		}
		counted[c.Object] = c
		recent[c.Term] = append(recently(c.Term, c), c)
		most := maxDeletes
		if c.Term > first {
			most += max(0, maxDeletes-len(recently(former, c)))
		}
		if n := len(recent[c.Term]); n == most+1 {
			found = append(found, violation{"I6 guard", fmt.Sprintf("%s\n  is the delete of object %d of this owner within %s, of %d", c, n, guardWindow, most), c.Object, c.Begin})
		}
	}
	return found
}

// differences compares what a target has with what it should have.
func differences(want, have map[object]string) (found []violation) {
	for o, spec := range want {
		switch is, there := have[o]; {
		case !there:
			found = append(found, violation{"I1 missing", fmt.Sprintf("%s should be %s", o, spec), o, time.Now()})
		case is != spec:
			found = append(found, violation{"I1 stale", fmt.Sprintf("%s is %s, should be %s", o, is, spec), o, time.Now()})
		}
	}
	for o, is := range have {
		if _, wanted := want[o]; !wanted {
			found = append(found, violation{"I1 extra", fmt.Sprintf("%s is %s, nobody wants it", o, is), o, time.Now()})
		}
	}
	slices.SortFunc(found, func(a, b violation) int {
		switch {
		case a.Text < b.Text:
			return -1
		case a.Text > b.Text:
			return 1
		}
		return 0
	})
	return found
}
