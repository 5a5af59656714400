package drivertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/drivertest"
)

// reporting is a target in memory that can say of each object whether it is healthy.
type reporting struct {
	*memory

	broken map[name]bool // guarded by memory.mu
}

func (r *reporting) ObjectHealth(ctx context.Context, ref driver.Ref) (driver.ObjectHealth, error) {
	if ctx.Err() != nil && !r.is("health of cut calls is healthy") {
		return driver.ObjectHealth{}, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := name{ref.Resource, ref.Key}
	_, exists := r.objects[at]
	if r.is("asking makes objects") {
		r.objects[name{ref.Resource, ref.Key + "!"}] = `{}`
	}
	failed := r.broken[at]
	if r.is("health is one for all objects") {
		failed = len(r.broken) > 0
	}
	switch {
	case exists && r.is("applied is unhealthy"):
		return driver.ObjectHealth{State: driver.Unhealthy, Reason: "failed"}, nil
	case exists && r.is("health has an unknown state"):
		return driver.ObjectHealth{}, nil
	case !exists && r.is("secrets are in the health"):
		return driver.ObjectHealth{}, errors.New("password " + memorySecret)
	case !exists && !r.is("absent is healthy"):
		return driver.ObjectHealth{}, errors.New("not found")
	case failed && r.is("health has no reason"):
		return driver.ObjectHealth{State: driver.Unhealthy}, nil
	case failed && r.is("health has a long reason"):
		return driver.ObjectHealth{State: driver.Progressing, Reason: strings.Repeat("x", 1001)}, nil
	case failed && !r.is("failed is healthy"):
		return driver.ObjectHealth{State: driver.Unhealthy, Reason: "failed"}, nil
	}
	return driver.ObjectHealth{State: driver.Healthy}, nil
}

func (m *memory) reportingFixture(t *testing.T) drivertest.Fixture {
	t.Helper()
	r := &reporting{memory: m, broken: map[name]bool{}}
	f := m.fixture(t)
	f.Driver = r
	f.Break = func(_ *testing.T, resource, key string) {
		m.mu.Lock()
		defer m.mu.Unlock()
		r.broken[name{resource, key}] = true
	}
	return f
}
