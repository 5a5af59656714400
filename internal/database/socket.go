package database

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"
)

const (
	// A peer that is gone without a word is given up by the kernel after about userTimeout, whoever waits for it.
	userTimeout       = 10 * time.Second
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
)

var (
	errSilent = errors.New("the database does not answer on this connection")
	errEnded  = errors.New("the process is stopping")
)

var dialer = net.Dialer{
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount},
	Control:         setUserTimeout,
}

// dial connects as all our connections do.
func (f *Fleet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, network, addr)
	if err != nil || f == nil {
		return conn, err
	}
	s := &socket{Conn: conn, fleet: f, addr: addr}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		_ = conn.Close() // unused
		return nil, errEnded
	}
	f.sockets[s] = true
	return s, nil
}

// socket is a connection that knows since when somebody waits for the other end.
type socket struct {
	net.Conn

	fleet            *Fleet
	addr             string
	reading, writing atomic.Int64 // since when, as Fleet.elapsed; 0: nobody does
	resting          atomic.Bool  // nothing was written since it was given back to its pool, so no answer is due
	suspect          atomic.Int64 // since when it may be half open; 0: it is not suspected, or has been heard since
	timeline         atomic.Int64 // of the server, once it is known
	why              atomic.Pointer[error]
}

// Read waits for the other end to say something.
func (s *socket) Read(b []byte) (int, error) {
	s.reading.Store(int64(s.fleet.elapsed()))
	n, err := s.Conn.Read(b)
	s.reading.Store(0)
	if n > 0 {
		s.suspect.Store(0)
	}
	return n, s.explain(err)
}

// Write waits for the other end to take what is said. Where pgx has begun to read before, the answer is due from now on: after a
// write that took long, pgx reads on in the background when the answer is complete.
func (s *socket) Write(b []byte) (int, error) {
	now := int64(s.fleet.elapsed())
	if since := s.reading.Load(); since != 0 {
		s.reading.CompareAndSwap(since, now)
	}
	s.resting.Store(false)
	s.writing.Store(now)
	n, err := s.Conn.Write(b)
	s.writing.Store(0)
	return n, s.explain(err)
}

// explain names the reason for which the Fleet ended the connection.
func (s *socket) explain(err error) error {
	if err != nil {
		if why := s.why.Load(); why != nil {
			return fmt.Errorf("%w: %w", *why, net.ErrClosed)
		}
	}
	return err
}

// since is when the oldest call began that waits for the other end; 0: none does.
func (s *socket) since() time.Duration {
	reading, writing := s.reading.Load(), s.writing.Load()
	if s.resting.Load() {
		return 0
	}
	if reading == 0 || writing != 0 && writing < reading {
		return time.Duration(writing)
	}
	return time.Duration(reading)
}

// silent reports whether an answer has been due for too long at a time, when the server has answered elsewhere at another.
func (s *socket) silent(now, heard time.Duration) bool {
	since, suspect := s.since(), time.Duration(s.suspect.Load())
	return since != 0 && (now-since >= maxSilence || suspect != 0 && heard > suspect && now-max(since, heard) >= suspectFor)
}

// end closes the connection under whoever uses it.
func (s *socket) end(why error) {
	s.why.CompareAndSwap(nil, &why)
	_ = s.Close() // it is given up
}

// Close closes the connection, which does not belong to the Fleet any more.
func (s *socket) Close() error {
	s.fleet.mu.Lock()
	delete(s.fleet.sockets, s)
	s.fleet.mu.Unlock()
	return s.Conn.Close()
}
