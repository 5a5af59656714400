package faults_test

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// line stands between an agent and the processes that serve streams, as a network and a load balancer do. While it is bad, it cuts most
// connections: after a random number of bytes, to one side or the other, or between two steps of the protocol. See cut.
type line struct {
	world    *world
	listener net.Listener
	url      string
	wg       sync.WaitGroup

	mu    sync.Mutex // guards what follows
	good  bool
	conns map[net.Conn]bool // nil: it is closed
}

func newLine(w *world) (*line, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{world: w, listener: listener, url: "http://" + listener.Addr().String(), conns: map[net.Conn]bool{}}
	l.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(conn) })
		}
	})
	return l, nil
}

func (l *line) serve(client net.Conn) {
	defer client.Close()
	var addresses []string
	for _, r := range l.world.replicas {
		if address := r.serves(); address != "" {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) == 0 {
		return
	}
	server, err := net.DialTimeout("tcp", addresses[rand.IntN(len(addresses))], time.Second)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.keep(client, server) {
		return
	}
	defer l.drop(client, server)
	var here, there io.Reader = client, server
	l.mu.Lock()
	good := l.good
	l.mu.Unlock()
	if !good && rand.IntN(4) > 0 {
		here, there = cut(cuts[rand.IntN(len(cuts))], client, server, 1<<rand.IntN(4), func(where string) { l.world.count("agents cut off "+where, 1) })
	}
	relay(client, server, here, there)
}

// relay passes bytes on both ways, as they are read from one place and another, until one side ends.
func relay(client, server net.Conn, fromClient, fromServer io.Reader) {
	var both sync.WaitGroup
	both.Go(func() { carry(server, fromClient, client) })
	both.Go(func() { carry(client, fromServer, server) })
	both.Wait()
}

// carry passes bytes on until one side ends, and then ends both.
func carry(to net.Conn, from io.Reader, origin net.Conn) {
	defer to.Close()
	defer origin.Close()
	_, _ = io.Copy(to, from) // either side may have gone
}

func (l *line) keep(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns == nil {
		return false
	}
	for _, conn := range conns {
		l.conns[conn] = true
	}
	return true
}

func (l *line) drop(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.conns, conn)
	}
}

// mend ends the cuts, and the connections that would be cut.
func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.good = true
	for conn := range l.conns {
		conn.Close()
	}
}

func (l *line) close() {
	l.listener.Close()
	l.mend()
	l.mu.Lock()
	for conn := range l.conns {
		conn.Close()
	}
	l.conns = nil
	l.mu.Unlock()
	l.wg.Wait()
}
