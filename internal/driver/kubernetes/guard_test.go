package kubernetes

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// allowance is an owner whose guard lets so many removals pass.
type allowance struct {
	driver.Caller

	left  int
	asked []int
}

func (a *allowance) MayRemove(n int) bool {
	a.asked = append(a.asked, n)
	if n > a.left {
		return false
	}
	a.left -= n
	return true
}

// F162: what a spec no longer names passes the guard before the first of it is deleted, and is held if it may not.
func TestF162_AListThatShrinksPassesTheGuard(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	owner := &allowance{left: 2}
	c.owner = owner
	abc := []any{configMap("a", one("1")), configMap("b", one("1")), configMap("c", one("1")), configMap("d", one("1"))}
	c.done(t, "web", abc...)
	require.Empty(t, owner.asked, "nothing goes")
	c.done(t, "web", abc[1:]...)
	require.Nil(t, b.data(t, "a"))

	held := "objects that the spec no longer names would be deleted: 2, ConfigMap b in " + b.namespace + " the first, and the guard allows no more deletes now"
	requireOut(t, driver.VerdictUnapproved, held, c.apply(t, "web", configMap("d", one("2"))))
	require.Equal(t, one("2"), b.data(t, "d"), "the rest of the spec is applied")
	require.NotNil(t, b.data(t, "b"))
	require.NotNil(t, b.data(t, "c"))
	require.Equal(t, []int{1, 2}, owner.asked)
	c.done(t, "web", abc[1:]...)
	require.Empty(t, c.drifted(t), "what comes back was not lost")

	requireOut(t, driver.VerdictUnapproved, held, c.apply(t, "web", configMap("d", one("2"))))
	c.approved = true
	c.done(t, "web", configMap("d", one("2")))
	require.Nil(t, b.data(t, "b"))
	require.Nil(t, b.data(t, "c"))
	require.Equal(t, []int{1, 2, 2}, owner.asked, "what is approved is not counted")
}

// F162: a removal that fails or waits was counted once.
func TestF162_ARemovalThatIsMadeAgainCountsOnce(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	c := b.open(t, "prod", nil)
	owner := &allowance{left: 1}
	c.owner = owner
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.Method != http.MethodDelete {
			return nil
		}
		return &fakeapi.Failure{Code: http.StatusForbidden, Status: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Message: "no right"}}
	})
	require.Equal(t, driver.VerdictBackoff, c.apply(t, "web", configMap("b", one("1"))).Verdict)
	require.Equal(t, driver.VerdictBackoff, c.apply(t, "web", configMap("b", one("1"))).Verdict)
	b.fake.Fail(nil)
	c.done(t, "web", configMap("b", one("1")))
	require.Equal(t, []int{1}, owner.asked)
	require.Nil(t, b.data(t, "a"))
}

// F162: an empty list is a mistake, and no way to delete.
func TestF162_ASpecWithoutManifestsIsBlocked(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", nil)
	c.done(t, "web", configMap("a", one("1")))
	for _, spec := range []string{`[]`, `{"apiVersion": "v1", "kind": "List", "items": []}`} {
		out := c.Driver.Apply(t.Context(), driver.Object{Ref: c.ref("web"), Spec: []byte(spec), Hash: driver.HashSpec([]byte(spec))})
		requireOut(t, driver.VerdictTerminal, "the spec names no manifest: to have the objects of the row deleted, delete the row", out)
	}
	require.Equal(t, one("1"), b.data(t, "a"))
}
