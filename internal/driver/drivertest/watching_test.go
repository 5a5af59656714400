package drivertest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
)

// watcher is a watch that runs.
type watcher struct {
	changed func(resource, key string)
	there   map[name]string // when it began
}

func (m *memory) Watch(ctx context.Context, changed func(resource, key string)) error {
	m.mu.Lock()
	w := &watcher{changed: changed, there: maps.Clone(m.objects)}
	if m.watches++; m.watches == 1 || !m.is("a watch works once") {
		m.watchers = append(m.watchers, w)
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.watchers = slices.DeleteFunc(m.watchers, func(other *watcher) bool { return other == w })
	}()
	switch {
	case m.is("a watch ends by itself"):
		return errors.New("no watch here")
	case m.is("a watch outlives its context"):
		select {}
	}
	<-ctx.Done()
	if m.is("a watch ends without an error") {
		return nil
	}
	return context.Cause(ctx)
}

// touch changes an object behind the driver's back.
func (m *memory) touch(t *testing.T, resource, key string) {
	t.Helper()
	m.mu.Lock()
	m.touches++
	m.objects[name{resource, key}] = fmt.Sprintf(`{"touched": %d}`, m.touches)
	watchers := slices.Clone(m.watchers)
	m.mu.Unlock()
	for _, w := range watchers {
		_, known := w.there[name{resource, key}]
		switch {
		case m.is("a watch names nothing"), m.is("a watch forgets hostile keys") && key == "..",
			m.is("a watch sees only what was there") && !known:
		case m.is("a watch mixes resources"):
			w.changed("apps", key)
			w.changed("jobs", key)
		default:
			w.changed(resource, key)
		}
	}
}
