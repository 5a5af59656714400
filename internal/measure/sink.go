package measure

import (
	"context"
	"sync"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// Sink is a driver that does nothing but say when it was called. Its zero value is ready.
type Sink struct {
	mu      sync.Mutex // guards waiting
	waiting map[string]chan time.Time
}

// Apply tells whoever waits for the object.
func (s *Sink) Apply(_ context.Context, obj driver.Object) driver.Outcome {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if called, ok := s.waiting[obj.Key]; ok {
		delete(s.waiting, obj.Key)
		called <- now
	}
	return driver.Done()
}

// Delete does nothing.
func (*Sink) Delete(context.Context, driver.Ref) driver.Outcome { return driver.Done() }

// Close has nothing to release.
func (*Sink) Close(context.Context) error { return nil }

// Expect returns a channel that is sent the moment of the next call for a key.
func (s *Sink) Expect(key string) <-chan time.Time {
	called := make(chan time.Time, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[string]chan time.Time{}
	}
	s.waiting[key] = called
	return called
}
