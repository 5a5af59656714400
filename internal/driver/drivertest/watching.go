package drivertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// touchAgain is the pause after which an object is touched again that was not named: the watch may not have begun before.
const touchAgain = 100 * time.Millisecond

// watch is one that runs, and what it has named.
type watch struct {
	cancel context.CancelCauseFunc
	ended  chan error

	mu    sync.Mutex
	named map[[2]string]bool // by resource and key
}

func (b *bench) watch(ctx context.Context, watcher driver.Watcher) *watch {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{cancel: cancel, ended: make(chan error, 1), named: map[[2]string]bool{}}
	go func() {
		w.ended <- watcher.Watch(ctx, func(resource, key string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.named[[2]string{resource, key}] = true
		})
	}()
	return w
}

func (w *watch) has(resource, key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.named[[2]string{resource, key}]
}

func (w *watch) all() map[[2]string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.named)
}

// requireEnds ends the context of a watch, which must return an error soon.
func (w *watch) requireEnds(t *testing.T) {
	t.Helper()
	w.cancel(errors.New("the target was handed over"))
	select {
	case err := <-w.ended:
		require.Error(t, err, "a watch returns why it has ended")
	case <-time.After(callTimeout):
		t.Fatal("the watch goes on after the end of its context")
	}
}

// requireNames touches an object until the watch names it.
func (b *bench) requireNames(t *testing.T, w *watch, resource, key string) {
	t.Helper()
	timeout := time.After(callTimeout)
	for !w.has(resource, key) {
		b.Touch(t, resource, key)
		for wait := time.After(touchAgain); wait != nil && !w.has(resource, key); {
			select {
			case err := <-w.ended:
				t.Fatalf("the watch has ended by itself: %v", err)
			case <-timeout:
				t.Fatalf("the watch does not name %q of %q, which was changed", key, resource)
			case <-wait:
				wait = nil
			case <-time.After(touchAgain / 20):
			}
		}
	}
}

// watches changes what was applied, before the watch began and after, and has the watch name it.
func watches(t *testing.T, b *bench) {
	watcher, ok := b.Driver.(driver.Watcher)
	if !ok {
		return
	}
	require.NotNil(t, b.Touch, "the fixture cannot change an object behind the driver's back")
	applied := map[[2]string]bool{}
	apply := func(resource, key string) {
		b.requireDone(t, b.apply(t, resource, key, `{"n": 1}`))
		applied[[2]string{resource, key}] = true
	}
	for i := range 3 {
		apply("apps", fmt.Sprint(i))
		apply("jobs", fmt.Sprint(i))
	}
	for _, name := range HostileNames() {
		if !b.mayRefuse(name) {
			apply("apps", name)
		}
	}
	for range 2 { // a target may be lost and owned again
		w := b.watch(t.Context(), watcher)
		defer w.cancel(nil)
		b.requireNames(t, w, "apps", "0")
		apply("apps", "late") // it is watched, too
		for at := range applied {
			b.requireNames(t, w, at[0], at[1])
		}
		b.requireDone(t, b.apply(t, "apps", "late", `{"n": 2}`))
		b.requireHas(t, "apps", "late", `{"n": 2}`)
		w.requireEnds(t)
		for at := range w.all() {
			require.Contains(t, applied, at, "the watch names an object that was never applied")
		}
		b.requireDone(t, b.delete(t, "apps", "late"))
	}
}

func watchStops(t *testing.T, b *bench) {
	watcher, ok := b.Driver.(driver.Watcher)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b.watch(ctx, watcher).requireEnds(t)
}
