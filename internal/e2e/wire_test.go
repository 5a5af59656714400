package e2e_test

import (
	"net"
	"net/url"
	"sync"

	"github.com/stretchr/testify/require"
)

// wire is a way to the database that a test can hold up: half open, as after the loss of a network, both ends have a
// connection and hear nothing. What was sent meanwhile arrives when it is let go, as TCP has it.
type wire struct {
	url string

	mu    sync.Mutex // guards what follows
	open  chan struct{}
	ends  []net.Conn
	ended bool
	pipes sync.WaitGroup
}

// newWire returns a way to the world's database.
func (w *world) newWire() *wire {
	w.t.Helper()
	to, err := url.Parse(w.db.URL)
	require.NoError(w.t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(w.t, err)
	backend := to.Host
	to.Host = l.Addr().String()
	x := &wire{url: to.String(), open: make(chan struct{})}
	close(x.open)
	x.pipes.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			x.pipes.Go(func() { x.connect(client, backend) })
		}
	})
	w.t.Cleanup(func() {
		x.let()
		x.end()
		l.Close()
		x.pipes.Wait()
	})
	return x
}

// hold makes the wire half open, for connections that are made from now on too.
func (x *wire) hold() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.open = make(chan struct{})
}

// let lets everything through again.
func (x *wire) let() {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.open:
	default:
		close(x.open)
	}
}

func (x *wire) passable() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open
}

// end ends all connections.
func (x *wire) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ended = true
	for _, c := range x.ends {
		c.Close()
	}
}

func (x *wire) keep(ends ...net.Conn) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ends = append(x.ends, ends...)
	if x.ended {
		for _, c := range ends {
			c.Close()
		}
	}
}

func (x *wire) connect(client net.Conn, backend string) {
	server, err := net.Dial("tcp", backend)
	if err != nil {
		client.Close()
		return
	}
	x.keep(client, server)
	var both sync.WaitGroup
	both.Go(func() { x.pipe(server, client) })
	both.Go(func() { x.pipe(client, server) })
	both.Wait()
}

// pipe copies what one end sends to the other. The end of a connection is as silent as everything else while the wire is
// held.
func (x *wire) pipe(to, from net.Conn) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		<-x.passable()
		if err != nil {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
