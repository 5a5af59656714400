package lease

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// wire is a TCP proxy between a replica and its server, to cut or to freeze.
type wire struct {
	listener net.Listener
	server   string
	pumps    sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn    // guarded by mu
	isCut  bool          // guarded by mu
	thawed chan struct{} // closed while bytes flow; guarded by mu
}

func newWire(t *testing.T, server string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	w := &wire{listener: listener, server: server, thawed: make(chan struct{})}
	close(w.thawed)
	w.pumps.Go(w.accept)
	t.Cleanup(func() {
		w.cut()
		_ = listener.Close()
		w.pumps.Wait()
	})
	return w
}

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.server)
		if err != nil || !w.admit(client, server) {
			_ = client.Close()
			continue
		}
		w.pumps.Go(func() { w.pump(client, server) })
		w.pumps.Go(func() { w.pump(server, client) })
	}
}

func (w *wire) admit(client, server net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isCut {
		_ = server.Close()
		return false
	}
	w.conns = append(w.conns, client, server)
	return true
}

func (w *wire) pump(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		<-w.flowing()
		if _, err := to.Write(buf[:n]); err != nil && !errors.Is(err, io.ErrShortWrite) {
			return
		}
	}
}

func (w *wire) flowing() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.thawed
}

// freeze leaves every connection open, and lets no byte through: a network that drops packets.
func (w *wire) freeze() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = make(chan struct{})
}

// cut closes every connection and refuses new ones: a process that was killed, or a server that is away.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = true
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
	select {
	case <-w.thawed:
	default:
		close(w.thawed)
	}
}

// mend lets new connections through.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isCut = false
}
