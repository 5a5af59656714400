package web

import (
	"net"
	"sync"
)

// limited accepts so many connections at once, and leaves others to wait: descriptors are needed for the database and the targets.
type limited struct {
	net.Listener

	slots chan struct{}
	done  chan struct{}
	once  sync.Once // closes done
}

func limit(l net.Listener, most int) *limited {
	return &limited{Listener: l, slots: make(chan struct{}, most), done: make(chan struct{})}
}

// Accept waits for a slot, then for a connection.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close ends waiting calls of Accept.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn

	release func()
}

// Close gives the slot to the next one.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
