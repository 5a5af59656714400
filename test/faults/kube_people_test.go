package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// byHand is the manager of the fields that people change.
const byHand = "hand"

// struckMost is how often people change one object: the driver leaves one alone that it has repaired more often.
const struckMost = 4

// live has people and operators do something to a cluster again and again until done, and then undo what is to be undone.
func (c *kubeCluster) live(done <-chan struct{}) {
	deeds := []func(){c.cut, c.compact, c.squat, c.squat, c.hold}
	if !c.world.plan.Honest { // a sync repairs what no watch has seen, for example because its owner was killed
		deeds = append(deeds, c.edit, c.edit, c.remove, c.deleteSide)
		if !c.plan.Remote && !slices.ContainsFunc([]string{faultReload, faultFailover, faultStartOver, faultUntrack, faultClock}, c.world.plan.has) {
			deeds = append(deeds, c.unlabel) // where the ledger knows what is ours without labels
		}
	}
	for over := false; !over; {
		pass(between(c.r, 20*time.Millisecond, 250*time.Millisecond), done)
		select {
		case <-done:
			over = true
		default:
		}
		c.one.Lock()
		if !over {
			deeds[c.r.IntN(len(deeds))]()
		}
		for i := first(c.ends); i >= 0 && (over || time.Now().After(c.ends[i].at)); i = first(c.ends) {
			end := c.ends[i].end
			c.ends = slices.Delete(c.ends, i, i+1)
			end()
		}
		c.calm = over
		c.one.Unlock()
	}
	c.fake.Cut()
}

// later has something done after a while. It needs one, as all that follows.
func (c *kubeCluster) later(end func()) {
	c.ends = append(c.ends, due{time.Now().Add(between(c.r, 200*time.Millisecond, 3*time.Second)), end})
}

func (c *kubeCluster) did(what string, at kubeObject) {
	c.world.count("by hand: "+what, 1)
	c.world.note("%s: %s %s", c.plan.Name, what, at.path())
}

// ours returns a member at random; nil: there is none that may be changed.
func (c *kubeCluster) ours() *kubeObject {
	all := slices.DeleteFunc(c.objects(), func(is kubeObject) bool {
		o, marked := is.row(c.plan.Name)
		return !marked || c.foreign[is.Metadata.UID] != "" || isProbe(o.Resource, o.Key) || c.struck[is.path()] == struckMost
	})
	if len(all) == 0 {
		return nil
	}
	is := all[c.r.IntN(len(all))]
	c.struck[is.path()]++
	return &is
}

func (c *kubeCluster) cut() {
	c.world.count("by hand: watches cut", 1)
	c.fake.Cut()
}

func (c *kubeCluster) compact() {
	c.world.count("by hand: events compacted", 1)
	c.fake.Compact()
	c.fake.Cut()
}

// change sends a patch to a member.
func (c *kubeCluster) change(what, patch string) *kubeObject {
	is := c.ours()
	if is != nil {
		c.do(http.MethodPatch, is.path(), patch)
		c.did(what, *is)
	}
	return is
}

func (c *kubeCluster) edit() {
	if is := c.ours(); is != nil && is.Data != nil {
		c.do(http.MethodPatch, is.path(), `{"data": {"state": "by hand"}}`)
		c.did("edited", *is)
	}
}

// unlabel takes a mark off a member that the ledger knows: others are found by their marks alone.
func (c *kubeCluster) unlabel() {
	is := c.ours()
	if is == nil || !c.isRecorded(is.Metadata.UID) {
		return
	}
	mark := []string{labelManagedBy, labelPartOf, labelObject, labelResource, markRow}[c.r.IntN(5)]
	sort := "labels"
	if mark == markRow {
		sort = "annotations"
	}
	c.do(http.MethodPatch, is.path(), fmt.Sprintf(`{"metadata": {%q: {%q: null}}}`, sort, mark))
	c.did("without "+mark, *is)
}

// isRecorded reports whether the ledger has the uid of a member; false, too, if the server does not answer at once.
func (c *kubeCluster) isRecorded(uid string) (recorded bool) {
	ctx, cancel := context.WithTimeout(c.world.t.Context(), 100*time.Millisecond)
	defer cancel()
	const sql = `SELECT EXISTS (SELECT FROM reconciler.ledger l JOIN reconciler.targets t ON t.id = l.target_id
		WHERE t.name = $1 AND convert_from(l.memory, 'UTF8') LIKE '%' || $2 || '%')`
	return c.world.pool.QueryRow(ctx, sql, c.plan.Name, uid).Scan(&recorded) == nil && recorded
}

func (c *kubeCluster) remove() {
	if is := c.ours(); is != nil {
		c.do(http.MethodDelete, is.path(), "")
		c.did("deleted", *is)
	}
}

// hold gives a member a finalizer for a while.
func (c *kubeCluster) hold() {
	if is := c.change("held", `{"metadata": {"finalizers": ["example.com/hold"]}}`); is != nil {
		c.later(func() { c.do(http.MethodPatch, is.path(), `{"metadata": {"finalizers": null}}`) })
	}
}

// squat puts a foreign object in the place of a member for a while. In an honest world the member is not there.
func (c *kubeCluster) squat() {
	for name, o := range c.names {
		at := kubeObject{Kind: "ConfigMap"}
		at.Metadata.Name, at.Metadata.Namespace = name, namespaceMain
		var is kubeObject
		_, text := c.do(http.MethodGet, at.path(), "")
		_ = json.Unmarshal([]byte(text), &is) // it has no uid where there is none
		if c.foreign[is.Metadata.UID] != "" || is.Metadata.UID != "" && c.world.plan.Honest || isProbe(o.Resource, o.Key) {
			continue
		}
		c.do(http.MethodDelete, at.path(), "")
		if code, _ := c.do(http.MethodGet, at.path(), ""); code != http.StatusNotFound {
			continue // it is held
		}
		uid := c.plant(name)
		c.did("squatted", at)
		c.later(func() {
			c.untouched(at, uid)
			c.do(http.MethodDelete, at.path(), "")
			delete(c.foreign, uid)
		})
		return
	}
}

// plant creates an object of another owner: without marks, with those of another ApplySet, or with ours on it in part.
func (c *kubeCluster) plant(name string) (uid string) {
	labels := []map[string]string{
		nil, {"app": "theirs"}, {labelManagedBy: "reconciler"}, {labelManagedBy: "reconciler", labelPartOf: "applyset-theirs", labelObject: "theirs"},
	}[c.r.IntN(4)]
	text, _ := json.Marshal(map[string]any{ // of texts
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "labels": labels}, "data": map[string]string{"state": "theirs"},
	})
	code, answer := c.do(http.MethodPost, "/api/v1/namespaces/"+namespaceMain+"/configmaps", string(text))
	var is kubeObject
	if code != http.StatusCreated || json.Unmarshal([]byte(answer), &is) != nil {
		c.world.violate("tester", "create %s: %d %s", name, code, answer)
	}
	c.foreign[is.Metadata.UID] = answer
	return is.Metadata.UID
}

// deleteSide deletes the second namespace with all that is in it, and makes it again.
func (c *kubeCluster) deleteSide() {
	if c.leaving {
		return
	}
	c.leaving = true
	c.world.count("by hand: namespaces deleted", 1)
	c.world.note("%s: the namespace is deleted", c.plan.Name)
	c.do(http.MethodDelete, "/api/v1/namespaces/"+namespaceSide, "")
	c.later(func() {
		c.fake.FinishNamespace(namespaceSide)
		c.later(func() {
			c.makeSide()
			c.leaving = false
			c.world.note("%s: the namespace is back", c.plan.Name)
		})
	})
}

func (c *kubeCluster) makeSide() {
	c.do(http.MethodPost, "/api/v1/namespaces", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "`+namespaceSide+`"}}`)
}

// untouched checks that a foreign object is as it was.
func (c *kubeCluster) untouched(at kubeObject, uid string) {
	if _, now := c.do(http.MethodGet, at.path(), ""); now != c.foreign[uid] {
		c.world.violate("K8s foreign", "%s is %s, was %s", at.path(), now, c.foreign[uid])
	}
}
