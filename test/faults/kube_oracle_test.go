package faults_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Marks of members: see docs/kubernetes.md.
const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	labelPartOf    = "applyset.kubernetes.io/part-of"
	labelResource  = "pgreconciler.github.io/resource"
	labelObject    = "pgreconciler.github.io/object"
	markRow        = "pgreconciler.github.io/row"
)

// wrongWrite returns what is wrong with a write of the product, from the object before and after it: what others own stays as it is, and a
// delete names the object that it is for.
func wrongWrite(method string, body []byte, before, after string, foreign map[string]string) string {
	var was kubeObject
	var sent struct{ Preconditions struct{ UID string } }
	_ = json.Unmarshal([]byte(before), &was) // of an object that there is
	_ = json.Unmarshal(body, &sent)          // of a delete
	switch theirs := foreign[was.Metadata.UID]; {
	case method == http.MethodDelete && sent.Preconditions.UID == "":
		return fmt.Sprintf("it has no precondition on the uid: %s", body)
	case theirs != "" && after != theirs:
		return fmt.Sprintf("the object of another owner is %s, was %s", after, theirs)
	}
	return ""
}

// judged returns what a world must be able to read of an object: its manifest, and its marks.
func (is kubeObject) judged() string {
	marks := map[string]string{markRow: is.Metadata.Annotations[markRow]}
	for _, name := range []string{labelManagedBy, labelPartOf, labelResource, labelObject} {
		marks[name] = is.Metadata.Labels[name]
	}
	text, _ := json.Marshal(marks) // of texts
	data, _ := json.Marshal(is.Data)
	return fmt.Sprintf("%s %s/%s %s %s", is.Kind, is.Metadata.Namespace, is.Metadata.Name, data, text)
}

// members returns what a cluster must have for a row.
func (w *world) members(o object, spec string) string {
	var all []kubeObject
	if err := json.Unmarshal([]byte(spec), &all); err != nil {
		w.violate("tester", "%s: %v", spec, err)
	}
	sum := func(text string) []byte {
		of := sha256.Sum256([]byte(text))
		return of[:]
	}
	texts := make([]string, len(all))
	for i, is := range all {
		if is.Metadata.Namespace == "" {
			is.Metadata.Namespace = namespaceMain
		}
		is.Metadata.Annotations = map[string]string{markRow: driver.EncodeKey(o.Resource) + " " + driver.EncodeKey(o.Key)}
		is.Metadata.Labels = map[string]string{
			labelManagedBy: "reconciler",
			labelPartOf:    "applyset-" + base64.RawURLEncoding.EncodeToString(sum("reconciler-"+o.Target+"."+namespaceMain+".ConfigMap.")) + "-v1",
			labelResource:  hex.EncodeToString(sum(o.Resource)[:8]),
			labelObject:    hex.EncodeToString(sum(o.Target + "\x00" + o.Resource + "\x00" + o.Key)[:16]),
		}
		texts[i] = is.judged()
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// contents returns the members of each row that the cluster has, and what is nobody's.
func (c *kubeCluster) contents() map[object]string {
	c.one.Lock()
	defer c.one.Unlock()
	texts := map[object][]string{}
	for _, is := range c.objects() {
		o, marked := is.row(c.plan.Name)
		switch {
		case c.foreign[is.Metadata.UID] != "", is.Metadata.Name == "reconciler-"+c.plan.Name:
			continue
		case !marked:
			o = object{c.plan.Name, "unmarked", is.path()}
		}
		texts[o] = append(texts[o], is.judged())
	}
	have := map[object]string{}
	for o, of := range texts {
		slices.Sort(of)
		have[o] = strings.Join(of, "\n")
	}
	return have
}

// judgeClusters checks that foreign objects are as they were, and that a sync writes nothing where all is as it should be.
func (w *world) judgeClusters() (found []violation) {
	for _, c := range w.clusters() {
		c.one.Lock()
		for uid, text := range c.foreign {
			var is kubeObject
			_ = json.Unmarshal([]byte(text), &is) // it was read once
			c.untouched(is, uid)
		}
		before := c.writes
		c.one.Unlock()
		if c.plan.Name == w.drained || !w.order(`SELECT reconciler.resync($1)`, c.plan.Name) {
			continue
		}
		if code, said := w.waitAtRest(); code != 0 {
			found = append(found, violation{What: "I1 rest", Text: "it does not come to rest after a sync: " + clip(said)})
		}
		c.one.Lock()
		if n := c.writes - before; n > 0 {
			found = append(found, violation{What: "K8s quiet", Text: fmt.Sprintf("%d writes of a sync of %s", n, c.plan.Name)})
		}
		c.one.Unlock()
	}
	return found
}

// owning of a target in a term.
type term struct {
	At     time.Time
	Target string
	Term   int64
	Owner  string // name of the instance, which ends with its process's number
}

// calls returns the journal, with the terms of calls that do not carry them.
func (w *world) calls() []call {
	calls := w.journal.all()
	if len(w.clusters()) == 0 {
		return calls
	}
	var terms []term
	w.insist(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `SELECT at, target, term, owner FROM test.terms ORDER BY at`)
		if err == nil {
			terms, err = pgx.CollectRows(rows, pgx.RowToStructByPos[term])
		}
		return err
	})
	for i := range terms {
		terms[i].At = w.actual(terms[i].At)
	}
	places := slices.Clone(w.replicas)
	for _, h := range w.hosts {
		places = append(places, h.replica)
	}
	for i := range calls {
		if e := w.endpoints[w.plan.index(calls[i].Object.Target)]; e.cluster != nil {
			calls[i].Term = termOf(calls[i], places, terms)
			if calls[i].Term == 0 && w.isJudged(calls[i]) {
				w.violate("tester", "whose call is this: %s", calls[i])
			}
		}
	}
	return calls
}

// termOf returns the term of a call: that of the lease which its process had by then, or of the agent's life.
func termOf(c call, places []*replica, terms []term) (n int64) {
	var by *process
	for _, r := range places {
		for _, p := range r.all {
			if r.name == c.Replica && p.began.Before(c.Begin) {
				by = p
			}
		}
	}
	if by == nil || c.Remote {
		if by != nil {
			n = by.began.UnixMicro()
		}
		return n
	}
	for _, t := range terms {
		if t.Target == c.Object.Target && t.At.Before(c.Begin) && pidInName.FindString(t.Owner) == strconv.Itoa(by.pid) {
			n = max(n, t.Term) // they are in the order of the server's clock, which jumps
		}
	}
	return n
}

func TestWrongWritesToAClusterAreFound(t *testing.T) {
	t.Parallel()
	const mine, theirs, changed = `{"metadata": {"uid": "1"}}`, `{"metadata": {"uid": "2"}}`, `{"metadata": {"uid": "2"}, "data": {"a": "1"}}`
	foreign := map[string]string{"2": theirs}
	precise := []byte(`{"preconditions": {"uid": "1"}}`)
	require.Empty(t, wrongWrite(http.MethodPatch, nil, mine, changed, foreign))
	require.Empty(t, wrongWrite(http.MethodPatch, nil, theirs, theirs, foreign), "it was refused")
	require.Empty(t, wrongWrite(http.MethodDelete, precise, mine, "", foreign))
	require.Contains(t, wrongWrite(http.MethodDelete, []byte(`{}`), mine, "", foreign), "no precondition")
	require.Contains(t, wrongWrite(http.MethodPatch, nil, theirs, changed, foreign), "another owner")
	require.Contains(t, wrongWrite(http.MethodDelete, precise, theirs, "", foreign), "another owner")
}

func TestCallsForAClusterHaveTheTermOfTheirProcess(t *testing.T) {
	t.Parallel()
	places := []*replica{
		{name: "r0", all: []*process{{pid: 7, began: at(1)}, {pid: 8, began: at(30)}}}, {name: "agent-0", all: []*process{{pid: 9, began: at(1)}}},
	}
	terms := []term{{at(2), "t0", 3, "r0-7"}, {at(10), "t0", 4, "r1-77"}, {at(20), "t0", 5, "r0-7"}, {at(31), "t0", 6, "r0-8"}, {at(32), "t1", 9, "r0-8"}}
	of := func(seconds float64, replica string) int64 {
		return termOf(call{Object: object{"t0", "num", "1"}, Begin: at(seconds), Replica: replica, Remote: replica == "agent-0"}, places, terms)
	}
	require.Equal(t, []int64{3, 3, 5, 6, at(1).UnixMicro()}, []int64{of(5, "r0"), of(15, "r0"), of(25, "r0"), of(40, "r0"), of(40, "agent-0")})
}

func TestAThirdOfTheWorldsHaveACluster(t *testing.T) {
	t.Parallel()
	const worlds = 2000
	with, remote := 0, 0
	for seed := range uint64(worlds) {
		for _, target := range newPlanOf(seed, nil).Targets {
			if target.Driver == "kubernetes" {
				with++
				if target.Remote {
					remote++
				}
			}
		}
	}
	require.InDelta(t, 1.0/3, float64(with)/worlds, 0.05)
	require.Greater(t, float64(remote)/float64(with), 0.1)
	require.True(t, newPlanOf(clusterSeed, nil).kubernetes(), "the gate lives with a cluster")
}
