package drivertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

// guarding is a target in memory that removes what is guarded only with approval.
type guarding struct {
	*memory

	guarded map[name]bool
}

func (g *guarding) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	out := g.memory.Apply(ctx, obj)
	if out.Verdict != driver.VerdictDone {
		return out
	}
	return g.settle(obj.Ref, strings.Contains(string(obj.Spec), "guarded"))
}

func (g *guarding) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	out := g.settle(ref, false)
	if out.Verdict == driver.VerdictDone || g.is("what is guarded goes before it is approved") {
		if deleted := g.memory.Delete(ctx, ref); out.Verdict == driver.VerdictDone {
			return deleted
		}
	}
	return out
}

// settle notes whether an object has something guarded from now on.
func (g *guarding) settle(ref driver.Ref, guarded bool) driver.Outcome {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.place(ref)
	asks := g.guarded[at] && !guarded && (!ref.Approved || g.is("an approval counts for nothing"))
	switch {
	case asks && g.is("what is guarded goes"):
	case asks && g.is("what is guarded stays without a word"):
		return driver.Done()
	case asks && g.is("to ask once is enough"):
		g.guarded[at] = false
		return driver.Unapproved(errors.New("it is guarded"))
	case asks:
		return driver.Unapproved(errors.New("it is guarded"))
	}
	g.guarded[at] = guarded
	return driver.Done()
}

func (m *memory) guardingFixture(t *testing.T) drivertest.Fixture {
	t.Helper()
	f := m.fixture(t)
	f.Driver = &guarding{memory: m, guarded: map[name]bool{}}
	f.Guard = func(_, _, spec string) string { return `{"guarded": ` + spec + `}` }
	return f
}
