package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// entry is a line of a journal; see testdata/journal.
type entry struct {
	Event    string
	Action   string
	Object   string
	Hash     string
	Version  int64
	Revision int64
	Term     int64
	Process  int
	At       time.Time
}

// cutAfter is how long after its first line a call may have been cut off, at its timeout: on a machine that stands still. It
// leaves no last line then, and its process is gone: if not, the next one would write of an overlap.
const cutAfter = 4 * time.Second

func (e entry) String() string {
	return fmt.Sprintf("%s of %s %s, version %d, revision %d, term %d, process %d", e.Event, e.Action, e.Object, e.Version, e.Revision, e.Term, e.Process)
}

// journalTarget is a target of the driver exec that keeps a journal of its calls, of which each takes at most delay.
// Its objects are files in <name>/objects.
func (w *world) journalTarget(name string, delay time.Duration, change ...object) object {
	w.t.Helper()
	require.NoError(w.t, os.MkdirAll(w.path(name+"/objects"), 0o700))
	target := object{
		"name": name, "driver": "exec", "guard": object{"max_fraction": 1},
		"options": object{"command": []string{journal, w.path(name), max(delay, time.Nanosecond).String()}},
	}
	for _, c := range change {
		maps.Copy(target, c)
	}
	return target
}

func (w *world) journal(target string) []entry {
	w.t.Helper()
	f, err := os.Open(w.path(target + "/journal"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(w.t, err)
	defer f.Close()
	var all []entry
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		var e entry
		require.NoError(w.t, json.Unmarshal(scanner.Bytes(), &e), scanner.Text())
		all = append(all, e)
	}
	return all
}

// begun waits until so many calls have begun.
func (w *world) begun(target string, calls int) {
	w.t.Helper()
	eventually(w.t, patience, func() error {
		if n := count(w.journal(target), "begin"); n != calls {
			return fmt.Errorf("%d calls have begun, not %d", n, calls)
		}
		return nil
	}, "calls")
}

func count(all []entry, event string) int {
	n := 0
	for _, e := range all {
		if e.Event == event {
			n++
		}
	}
	return n
}

// inOrder finds what must never be in a journal: two calls for one object at once, or an older one after a newer one.
func inOrder(all []entry) error {
	type last struct {
		term, revision, version int64
		open                    *entry
	}
	objects := map[string]*last{}
	for _, e := range all {
		l := objects[e.Object]
		if l == nil {
			l = &last{}
			objects[e.Object] = l
		}
		switch {
		case e.Event == "end":
			l.open = nil
			continue
		case e.Event == "overlap":
			return fmt.Errorf("two calls at once: %v", e)
		case l.open != nil && l.open.Term == e.Term && e.At.Sub(l.open.At) < cutAfter:
			return fmt.Errorf("%v: before %v has ended", e, *l.open)
		case e.Term < l.term:
			return fmt.Errorf("%v: after a call of term %d", e, l.term)
		case e.Term == l.term && e.Revision < l.revision:
			return fmt.Errorf("%v: after revision %d", e, l.revision)
		case e.Action == "apply" && e.Version < l.version:
			return fmt.Errorf("%v: after version %d", e, l.version)
		}
		l.term, l.revision, l.version, l.open = e.Term, e.Revision, max(l.version, e.Version), &e
	}
	return nil
}

// The check of the order of calls can fail.
func TestOrderOfCallsIsChecked(t *testing.T) {
	t.Parallel()
	begin := func(revision, term, version int64) entry {
		return entry{Event: "begin", Action: "apply", Object: "app/1", Revision: revision, Term: term, Version: version}
	}
	end := func(e entry) entry {
		e.Event = "end"
		return e
	}
	one, two := begin(1, 1, 1), begin(2, 1, 2)
	require.NoError(t, inOrder([]entry{one, end(one), two, begin(2, 2, 2)}))
	late := two
	late.At = one.At.Add(cutAfter)
	require.NoError(t, inOrder([]entry{one, late}))
	require.EqualError(t, inOrder([]entry{one, two}), "begin of apply app/1, version 2, revision 2, term 1, process 0: "+
		"before begin of apply app/1, version 1, revision 1, term 1, process 0 has ended")
	require.EqualError(t, inOrder([]entry{two, end(two), one}), "begin of apply app/1, version 1, revision 1, term 1, process 0: after revision 2")
	require.EqualError(t, inOrder([]entry{two, end(two), begin(3, 1, 1)}), "begin of apply app/1, version 1, revision 3, term 1, process 0: after version 2")
	require.EqualError(t, inOrder([]entry{begin(1, 2, 1), one}), "begin of apply app/1, version 1, revision 1, term 1, process 0: after a call of term 2")
	require.EqualError(t, inOrder([]entry{{Event: "overlap", Action: "delete", Object: "app/1"}}), "two calls at once: overlap of delete app/1, version 0, revision 0, term 0, process 0")
}
