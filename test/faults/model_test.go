package faults_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// object names one object of one target.
type object struct{ Target, Resource, Key string }

func (o object) String() string { return fmt.Sprintf("%s %s/%q", o.Target, o.Resource, o.Key) }

// change is one row of the tester's history: a row as it was and as it became.
type change struct {
	At       time.Time // of the commit
	Seq      int64
	Xid      string // of the transaction
	Tab      string
	Old, New *row
	Silent   bool // no trigger of the product said which object it is: a TRUNCATE, or triggers were disabled
}

// concerns says whether a change may matter to an object.
func (c change) concerns(o object) bool {
	for _, r := range []*row{c.Old, c.New} {
		if r != nil && (c.Tab == o.Resource && r.Key == o.Key || c.Tab == "workspace" && o.Resource == "svc" || c.Tab == tabDefinition && r.Key == o.Resource) {
			return true
		}
	}
	return false
}

func (c change) String() string {
	text := func(r *row) string {
		if r == nil {
			return "nothing"
		}
		place := "everywhere"
		if r.Place != nil {
			place = *r.Place
		}
		return fmt.Sprintf("{%s at %s, running %v, version %d, workspace %d, suspended %v}", r.Key, place, r.Running, r.Version, r.Workspace, r.Suspended)
	}
	return fmt.Sprintf("%s commit: %s from %s to %s", c.At.UTC().Format("15:04:05.000000"), c.Tab, text(c.Old), text(c.New))
}

// row is what the model knows of a row of any table.
type row struct {
	Resource  string `json:"-"`
	Key       string `json:"-"`
	Place     *string
	Running   bool
	Size      int64
	Version   int64
	Workspace int64 // of a service
	Suspended bool  // of a workspace
	Variant   int   // of a definition; its key is the resource
}

// parseRow reads a row of a table from the JSON that the tester's trigger made of it.
func parseRow(tab string, text []byte) (*row, error) {
	if text == nil {
		return nil, nil
	}
	r := &row{Resource: tab}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	var raw map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&raw); err != nil {
		return nil, err
	}
	switch tab {
	case tabDefinition:
		r.Key = raw["resource"].(string)
		return r, nil
	case "day":
		r.Running = r.Running && r.Size < dayEnds
	}
	if tab == "txt" {
		r.Key = keyText([]string{raw["a"].(string), raw["B c"].(string)})
		r.Running = r.Running && r.Size >= 0
		if r.Place != nil {
			lower := strings.ToLower(*r.Place)
			r.Place = &lower
		}
	} else {
		r.Key = fmt.Sprint(raw["id"])
	}
	return r, nil
}

// moment is a state of an object, from a commit to the next one.
type moment struct {
	At     time.Time
	Wanted bool
}

// component names a row that a spec is made from, by table and key.
type component struct{ Tab, Key string }

// model is what was committed, computed from the history alone.
type model struct {
	Moments map[object][]moment         // in order; before the first one an object is not wanted
	Ranks   map[component]map[int64]int // of each version of a row: the how-manieth it is
	Tracked map[string][]moment         // of resources that novelties define, in order: whether they are tracked
	targets []string
	rows    map[component]*row
	inside  map[int64]map[string]bool // workspace: keys of its services
	variant map[string]int            // of the definitions, by resource
	have    map[object]bool
}

// newModel computes the states that objects went through.
func newModel(targets []string, history []change) *model {
	m := &model{
		Moments: map[object][]moment{}, Ranks: map[component]map[int64]int{}, Tracked: map[string][]moment{}, targets: targets,
		rows: map[component]*row{}, inside: map[int64]map[string]bool{}, variant: map[string]int{}, have: map[object]bool{},
	}
	history = slices.Clone(history)
	slices.SortFunc(history, func(a, b change) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Seq, b.Seq)) })
	for len(history) > 0 {
		n := 1
		for n < len(history) && history[n].At.Equal(history[0].At) {
			n++
		}
		m.commit(history[:n])
		history = history[n:]
	}
	return m
}

// commit takes what became visible at one time.
func (m *model) commit(changes []change) {
	touched := map[component]bool{}
	for _, c := range changes {
		if c.Old != nil {
			m.remove(component{c.Tab, c.Old.Key}, c.Old)
			touched[component{c.Tab, c.Old.Key}] = true
		}
		if c.New != nil && c.Tab == tabDefinition {
			m.Tracked[c.New.Key] = append(m.Tracked[c.New.Key], moment{c.At, c.New.Variant != variantNone})
		}
		if c.New != nil {
			m.put(component{c.Tab, c.New.Key}, c.New)
			touched[component{c.Tab, c.New.Key}] = true
		}
	}
	concerned := map[component]bool{}
	for name := range touched {
		if name.Tab == tabDefinition {
			for row := range m.rows {
				if row.Tab == name.Key {
					concerned[row] = true
				}
			}
			continue
		}
		if name.Tab != "workspace" {
			concerned[name] = true
			continue
		}
		var id int64
		_, _ = fmt.Sscan(name.Key, &id) // keys of workspaces are numbers
		for key := range m.inside[id] {
			concerned[component{"svc", key}] = true
		}
	}
	for name := range concerned {
		m.look(name, changes[0].At)
	}
}

func (m *model) remove(name component, r *row) {
	delete(m.rows, name)
	if name.Tab == "svc" {
		delete(m.inside[r.Workspace], name.Key)
	}
}

func (m *model) put(name component, r *row) {
	if name.Tab == tabDefinition {
		m.variant[name.Key] = r.Variant
		return
	}
	m.rows[name] = r
	if m.Ranks[name] == nil {
		m.Ranks[name] = map[int64]int{}
	}
	if _, known := m.Ranks[name][r.Version]; !known {
		m.Ranks[name][r.Version] = len(m.Ranks[name])
	}
	if name.Tab == "svc" {
		if m.inside[r.Workspace] == nil {
			m.inside[r.Workspace] = map[string]bool{}
		}
		m.inside[r.Workspace][name.Key] = true
	}
}

// look notes in which targets the object of a row is wanted now.
func (m *model) look(name component, at time.Time) {
	r := m.rows[name]
	wanted := r != nil && r.Running
	if variant := m.variant[name.Tab]; variant == variantNone || wanted && variant&variantEven != 0 && r.Size%2 != 0 {
		wanted = false
	}
	if wanted && name.Tab == "svc" {
		w := m.rows[component{"workspace", fmt.Sprint(r.Workspace)}]
		wanted = w != nil && !w.Suspended
	}
	for _, target := range m.targets {
		o := object{target, name.Tab, name.Key}
		now := wanted && (r.Place == nil || *r.Place == target)
		if now != m.have[o] {
			m.have[o] = now
			m.Moments[o] = append(m.Moments[o], moment{at, now})
		}
	}
}

// unwanted says whether an object was not wanted at some moment between two times.
func (m *model) unwanted(o object, from, to time.Time) bool {
	moments := m.Moments[o]
	if len(moments) == 0 || moments[0].At.After(from) {
		return true // not wanted at the beginning
	}
	return ceased(moments, from, to)
}

// untracked says whether a resource was not tracked at some moment between two times.
func (m *model) untracked(resource string, from, to time.Time) bool {
	return ceased(m.Tracked[resource], from, to)
}

// ceased says whether something was not wanted in one of these moments, between two times.
func ceased(moments []moment, from, to time.Time) bool {
	for i, s := range moments {
		ends := to
		if i+1 < len(moments) {
			ends = moments[i+1].At
		}
		if !s.Wanted && !s.At.After(to) && !ends.Before(from) {
			return true
		}
	}
	return false
}
