package kubernetes

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const fightRemedy = ": repairs pause for 1m0s: take the field out of the manifest, list it in options.ignore, or stop the other"

func TestAFightPausesRepairs(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"conflicts": "force"})
	troubled, ok := c.Driver.(driver.Troubled)
	require.True(t, ok)
	c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	for i := range repairsMost + 1 {
		require.NoError(t, troubled.Trouble())
		require.Zero(t, driver.ContestedBy(c.Driver))
		b.edit(t, configMaps, "a", "other", fmt.Sprintf(`{"data": {"a": "other %d"}}`, i))
		c.done(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	}
	b.edit(t, configMaps, "a", "other", `{"data": {"a": "other"}}`)
	out := c.apply(t, "web", configMap("a", one("1")), configMap("b", one("1")))
	want := "ConfigMap a in " + b.namespace + ": it was repaired 6 times, and each time other changed .data.a" + fightRemedy
	requireOut(t, driver.VerdictRetryAfter, want, out)
	require.Greater(t, out.After, fightPauseLeast/2)
	require.EqualError(t, troubled.Trouble(), want)
	require.Equal(t, 1, driver.ContestedBy(c.Driver))
	require.Equal(t, one("other"), b.data(t, "a"))

	c.done(t, "web", configMap("a", one("2")), configMap("b", one("1"))) // a change of the row is no repair
	require.Equal(t, one("2"), b.data(t, "a"))
}

func TestBlameNamesTheManagerAndTheField(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	c := b.open(t, "prod", driver.Options{"conflicts": "force"})
	cl, ok := c.Driver.(*cluster)
	require.True(t, ok)
	manifest := configMap("a", map[string]any{"a": "1", "b": "1"})
	c.done(t, "web", manifest)
	for want, change := range map[string]func(){
		"edit changed .data.b":    func() { b.edit(t, configMaps, "a", "edit", `{"data": {"b": "2"}}`) },
		"remover removed .data.a": func() { b.edit(t, configMaps, "a", "remover", `{"data": {"a": null, "c": "1"}}`) },
		"somebody deleted it":     func() { b.remove(t, configMaps, "a") },
	} {
		change()
		c.done(t, "web", manifest)
		at := place{GroupKind: schema.GroupKind{Kind: "ConfigMap"}, Namespace: b.namespace, Name: "a"}
		require.Equal(t, want, cl.fights.open[at].blame)
	}
}

func TestPausesOfAFightGrowAndEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fights{open: map[place]*fight{}}
		at := place{Name: "a"}
		for range 20 { // a repair every 20 seconds is none
			require.NoError(t, f.repaired(at, "x"))
			require.Equal(t, driver.VerdictDone, f.paused(at).Verdict)
			time.Sleep(20 * time.Second)
		}
		time.Sleep(repairsWithin)
		for range repairsMost {
			require.NoError(t, f.repaired(at, "x"))
			require.Equal(t, driver.VerdictDone, f.paused(at).Verdict)
		}
		require.Error(t, f.repaired(at, "x"))
		for pause := fightPauseLeast; pause <= fightPauseMost; pause *= 2 {
			require.Equal(t, pause, f.paused(at).After)
			time.Sleep(pause)
			require.Equal(t, driver.VerdictDone, f.paused(at).Verdict)
			require.Error(t, f.repaired(at, "x"))
		}
		require.Equal(t, fightPauseMost, f.paused(at).After)
		require.NoError(t, f.repaired(place{Name: "b"}, "x"))
		time.Sleep(2*fightPauseMost + time.Second)
		require.NoError(t, f.repaired(place{Name: "c"}, "x"))
		require.Len(t, f.open, 1)
		require.NoError(t, f.trouble())
	})
}
