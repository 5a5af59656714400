package pgtest

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// Line is a TCP connection to a server that can be cut, go dead without a word, or lead somewhere else, as a network, a
// moved address or a failover does.
type Line struct {
	URL string // through it

	listener net.Listener
	pumps    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	backend string
	wires   map[*wire]bool
}

// wire is one connection through a line.
type wire struct {
	ends    [2]net.Conn
	mu      sync.Mutex // guards swallow
	swallow bool
}

func (w *wire) close() {
	for _, end := range w.ends {
		_ = end.Close()
	}
}

func (w *wire) swallows() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.swallow
}

// NewLine returns a line to the server of a URL, open until the end of the test.
func NewLine(t testing.TB, to string) *Line {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatalf("open a line: %v", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("open a line: %v", err)
	}
	l := &Line{listener: listener, backend: u.Host, wires: map[*wire]bool{}}
	u.Host = listener.Addr().String()
	l.URL = u.String()
	l.pumps.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		l.Cut()
		l.pumps.Wait()
	})
	return l
}

// Swallow lets nothing pass on the connections that there are, either way, and tells neither end. New ones work.
func (l *Line) Swallow() {
	for _, w := range l.all() {
		w.mu.Lock()
		w.swallow = true
		w.mu.Unlock()
	}
}

// Cut ends the connections that there are. New ones work.
func (l *Line) Cut() {
	for _, w := range l.all() {
		w.close()
	}
}

// Lead has new connections lead to the server of another URL.
func (l *Line) Lead(t testing.TB, to string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatalf("lead a line: %v", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backend = u.Host
}

func (l *Line) all() (wires []*wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		wires = append(wires, w)
	}
	return wires
}

func (l *Line) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		backend := l.backend
		l.mu.Unlock()
		server, err := net.Dial("tcp", backend) //nolint:noctx // a server of this machine answers or refuses at once
		if err != nil {
			_ = client.Close()
			continue
		}
		w := &wire{ends: [2]net.Conn{client, server}}
		l.mu.Lock()
		l.wires[w] = true
		l.mu.Unlock()
		l.pumps.Go(func() { l.pump(w, client, server) })
		l.pumps.Go(func() { l.pump(w, server, client) })
	}
}

// pump passes bytes on until one end closes.
func (l *Line) pump(w *wire, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if w.swallows() {
			n = 0
		}
		if n > 0 {
			if _, failed := to.Write(buffer[:n]); err == nil {
				err = failed
			}
		}
		if err == nil {
			continue
		}
		if !w.swallows() {
			w.close()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if w.swallows() {
			_ = from.Close() // the other end is not told; Cut still finds it
			return
		}
		delete(l.wires, w)
		return
	}
}
