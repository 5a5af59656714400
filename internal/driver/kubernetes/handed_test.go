package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/kubernetes/fakeapi"
)

// table is an owner that knows the rows as they are, whatever was applied.
type table struct {
	allowance

	rows map[string][]any
	err  error
}

func (r *table) Wanted(_ context.Context, resource, key string) (json.RawMessage, error) {
	manifests, ok := r.rows[key]
	if !ok || resource != "apps" || r.err != nil {
		return nil, r.err
	}
	return json.Marshal(manifests)
}

// keyed returns a driver of a target whose owner knows these rows. They are applied.
func (b *bed) keyed(t *testing.T, opts driver.Options, rows map[string][]any) (*caller, *table) {
	t.Helper()
	c, owner := b.open(t, "prod", opts), &table{rows: rows}
	c.owner = owner
	for key, manifests := range rows {
		c.done(t, key, manifests...)
	}
	return c, owner
}

// row applies a row as it is now, or deletes its object.
func (c *caller) row(t *testing.T, key string) driver.Outcome {
	t.Helper()
	manifests, ok := c.owner.(*table).rows[key] //nolint:forcetypeassert // as keyed has made it
	if !ok {
		return c.delete(t, key)
	}
	return c.apply(t, key, manifests...)
}

// claim has the call for a row claimed, as its owner does when it hands it out.
func (c *caller) claim(t *testing.T, key string) (removes bool) {
	t.Helper()
	spec, err := json.Marshal(c.owner.(*table).rows[key]) //nolint:forcetypeassert // as keyed has made it
	require.NoError(t, err)
	return c.Driver.(driver.Claimer).Claim(driver.Object{Ref: c.ref(key), Spec: spec, Hash: driver.HashSpec(spec)}) //nolint:forcetypeassert // it is one
}

func (b *bed) uid(t *testing.T, name string) string {
	t.Helper()
	found := b.get(t, configMaps, b.namespace, name)
	require.NotNil(t, found, "%s is gone", name)
	return string(found.GetUID())
}

const takesOver = ` names it now, and takes it over`

// F165: a key that is renamed keeps its members, in whatever order the two calls are made, and no guard or approval is asked.
func TestF165_ARenamedKeyKeepsItsMembers(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{
		"TheNewKeyFirst": {"k2", "k1"}, "TheOldKeyFirst": {"k1", "k2", "k1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			a := []any{configMap("a", one("1"))}
			c, owner := b.keyed(t, driver.Options{"protected": []any{"ConfigMap"}}, map[string][]any{"k1": a})
			uid := b.uid(t, "a")
			owner.rows = map[string][]any{"k2": a}
			require.False(t, c.claim(t, "k2"))
			for i, key := range order {
				if out := c.row(t, key); key == "k1" && i == 0 {
					requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+b.namespace+`: apps "k2"`+takesOver, out)
				} else {
					requireDone(t, out)
				}
				require.Equal(t, uid, b.uid(t, "a"))
			}
			require.Empty(t, c.drifted(t))
			require.Empty(t, owner.asked)

			delete(owner.rows, "k2")
			c.approved = true
			requireDone(t, c.row(t, "k2"))
			require.Nil(t, b.data(t, "a"))
		})
	}
}

// F165: a manifest that moves from one row to another stays in the cluster, also where rows exchange theirs.
func TestF165_AMemberMovesFromRowToRow(t *testing.T) {
	t.Parallel()
	a, b1, d := configMap("a", one("1")), configMap("b", one("1")), configMap("d", one("1"))
	for name, order := range map[string][]string{"TheRowThatHadIt": {"web", "api", "web", "api"}, "TheRowThatGetsIt": {"api", "web", "api", "web"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			c, owner := b.keyed(t, nil, map[string][]any{"web": {a, b1}, "api": {d}})
			uids := []string{b.uid(t, "a"), b.uid(t, "b"), b.uid(t, "d")}
			owner.rows = map[string][]any{"web": {b1, d}, "api": {configMap("a", one("2"))}}
			require.True(t, c.claim(t, "web"))
			require.True(t, c.claim(t, "api"))
			for _, key := range order {
				if out := c.row(t, key); out.Verdict != driver.VerdictWaiting {
					requireDone(t, out)
				}
			}
			require.Equal(t, uids, []string{b.uid(t, "a"), b.uid(t, "b"), b.uid(t, "d")})
			require.Equal(t, one("2"), b.data(t, "a"))
			require.Empty(t, c.drifted(t))
			require.Empty(t, owner.asked)
		})
	}
}

// F165: of two rows that name one object the second gets it when the first goes, if it names it then.
func TestF165_TheSecondRowGetsAnObjectWhenTheFirstGoes(t *testing.T) {
	t.Parallel()
	for name, still := range map[string]bool{"ItNamesItStill": true, "ItDoesNotNameItAnyMore": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			c, owner := b.keyed(t, nil, map[string][]any{"web": {configMap("a", one("1"))}})
			uid := b.uid(t, "a")
			owner.rows["api"] = []any{configMap("a", one("2"))}
			requireOut(t, driver.VerdictBackoff, `ConfigMap a in `+b.namespace+`: two rows name it: apps "web" has it, and apps "api" asks for it`, c.row(t, "api"))
			delete(owner.rows, "web")
			if !still {
				owner.rows["api"] = []any{configMap("b", one("2"))}
				requireDone(t, c.row(t, "web"))
				require.Nil(t, b.data(t, "a"))
				return
			}
			requireOut(t, driver.VerdictWaiting, "ConfigMap a in "+b.namespace+`: apps "api"`+takesOver, c.row(t, "web"))
			requireDone(t, c.row(t, "api"))
			requireDone(t, c.row(t, "web"))
			require.Equal(t, uid, b.uid(t, "a"))
			require.Equal(t, one("2"), b.data(t, "a"))
			require.Empty(t, c.drifted(t))
		})
	}
}

// F165: while the other row cannot be read, nothing is deleted and nothing is taken over.
func TestF165_ARowThatCannotBeReadLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	a := []any{configMap("a", one("1"))}
	c, owner := b.keyed(t, nil, map[string][]any{"k1": a})
	owner.rows = map[string][]any{"k2": a}
	owner.err = errors.New("its row cannot be read: division by zero")
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+`: apps "k1" has it: its row cannot be read: division by zero`, c.row(t, "k2"))
	requireOut(t, driver.VerdictBackoff, "ConfigMap a in "+b.namespace+`: apps "k2" has asked for it: its row cannot be read: division by zero`, c.row(t, "k1"))
	require.NotNil(t, b.data(t, "a"))
	owner.err = nil
	requireDone(t, c.row(t, "k2"))
	requireDone(t, c.row(t, "k1"))
	require.Empty(t, c.drifted(t))
}

// F165: a delete that has looked at an object before another row took it over does not delete it.
func TestF165_ADeleteLosesTheRaceAgainstATakeover(t *testing.T) {
	t.Parallel()
	b := fakeBed(t)
	a := []any{configMap("a", one("1"))}
	c, owner := b.keyed(t, nil, map[string][]any{"k1": a})
	uid := b.uid(t, "a")
	delete(owner.rows, "k1")
	var once sync.Once
	b.fake.Fail(func(r *http.Request) *fakeapi.Failure {
		if r.Method == http.MethodDelete {
			once.Do(func() {
				owner.rows["k2"] = a
				requireDone(t, c.row(t, "k2"))
			})
		}
		return nil
	})
	requireDone(t, c.delete(t, "k1"))
	require.Equal(t, uid, b.uid(t, "a"))
	require.Empty(t, c.drifted(t))
}

// F165: what was applied under another field manager is taken over from the other row, too.
func TestF165_AMemberMovesAfterAnotherFieldManager(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c, owner := b.keyed(t, nil, map[string][]any{"k1": {configMap("a", map[string]any{"a": "1", "b": "1"})}})
	uid := b.uid(t, "a")
	again := b.open(t, "prod", driver.Options{"field_manager": "platform"})
	again.memory, again.owner = c.memory, owner
	owner.rows = map[string][]any{"k2": {configMap("a", one("2"))}}
	requireDone(t, again.row(t, "k2"))
	requireDone(t, again.row(t, "k1"))
	require.Equal(t, one("2"), b.data(t, "a"))
	require.Equal(t, uid, b.uid(t, "a"))
	require.Empty(t, again.drifted(t))
}
