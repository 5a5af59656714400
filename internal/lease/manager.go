package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/database"
)

// Manager is one process's part in ownership. It may be started again after it was stopped.
type Manager struct {
	cfg     Config
	signals signals
	beats   atomic.Int64 // heartbeats sent
	active  atomic.Int64 // calls of RunTarget and RunLeader that have not returned

	mu       sync.Mutex
	session  *session      // from Start to the end of its loop; guarded by mu
	started  chan struct{} // guarded by mu
	isClosed bool          // started is closed; guarded by mu
	status   Status        // guarded by mu
	beatAt   time.Duration // clock when the last heartbeat was answered; guarded by mu
}

// Status is what a Manager holds at the moment, for health checks and metrics.
type Status struct {
	Targets   []string      // owned, sorted
	Leader    bool          // leads the tick
	Failing   int           // heartbeats in a row that failed
	Peers     int           // other processes that were alive at the last heartbeat
	SinceBeat time.Duration // since the last heartbeat that was answered; 0 before the first
}

// New returns a Manager that has not been started. Start checks the config.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg.withDefaults(), started: make(chan struct{})}
}

// Start checks the config, registers this process and its targets in the database, and begins to work in the
// background until Stop. It fails when the database is not reachable, or its schema is missing. The end of ctx is
// the same as Stop with a context that has ended, but Stop must be called all the same.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.cfg.validate(); err != nil {
		return err
	}
	s, live := newSession(ctx, m)
	if err := m.admit(s); err != nil {
		s.cancel(err)
		return err
	}
	if err := s.register(live); err != nil {
		s.cancel(err)
		m.dismiss(s)
		return fmt.Errorf("register process %s: %w", m.cfg.Name, database.Explain(err))
	}
	s.registered.Store(true)
	m.mu.Lock()
	m.isClosed = true
	close(m.started)
	m.mu.Unlock()
	go func() {
		s.loop(live)
		m.dismiss(s)
	}()
	return nil
}

// Started is closed when Start has succeeded. After a Stop there is a new channel.
func (m *Manager) Started() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started
}

// Stop asks every run to drain, waits for them, gives back their leases, so that others take over at once, and
// removes this process's row. When ctx ends first, the contexts of what still runs end with ErrStopped, and Stop
// returns a little later, with an error that names what was not released. Stopping what does not run does nothing.
func (m *Manager) Stop(ctx context.Context) error {
	m.mu.Lock()
	s := m.session
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	s.requestStop()
	select {
	case <-s.done:
	case <-ctx.Done():
		s.cancel(ErrStopped)
		<-s.done // bounded by Timing.StopGrace and statement timeouts
		return fmt.Errorf("stop ownership: what still ran was cut off: %w", errors.Join(context.Cause(ctx), s.err))
	}
	if s.err != nil {
		return fmt.Errorf("stop ownership: %w", s.err)
	}
	return nil
}

// Status says what is held at the moment.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	status := m.status
	if m.beatAt != 0 {
		status.SinceBeat = m.cfg.Clock() - m.beatAt
	}
	return status
}

// admit makes s the one session. A run that has outlived its session bars the next: there would be two at once.
func (m *Manager) admit(s *session) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session != nil {
		return ErrRunning
	}
	if n := m.active.Load(); n > 0 {
		return fmt.Errorf("%w: runs of before have not returned (%d)", ErrRunning, n)
	}
	m.session = s
	return nil
}

func (m *Manager) dismiss(s *session) {
	m.mu.Lock()
	m.session = nil
	m.status, m.beatAt = Status{}, 0
	if m.isClosed {
		m.started, m.isClosed = make(chan struct{}), false
	}
	m.mu.Unlock()
	close(s.done)
}

func (m *Manager) publish(status Status, beatAt time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status, m.beatAt = status, beatAt
}
