package faults_test

import (
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// proxy stands between one replica and PostgreSQL, as a network does.
type proxy struct {
	listeners []net.Listener
	url       string // of the database, through the proxy
	wg        sync.WaitGroup

	mu     sync.Mutex // guards what follows
	cut    bool       // new connections are closed at once
	delay  time.Duration
	frozen bool
	closed chan struct{} // closed with the proxy
	thawed chan struct{} // closed when frozen ends
	conns  map[net.Conn]bool
	dead   map[net.Conn]bool // of clients, on which nothing passes any more
}

// newProxy leads to one server or several, each by an address of its own. Of several, who connects takes the first that
// takes writes.
func newProxy(to ...string) (*proxy, error) {
	p := &proxy{closed: make(chan struct{}), thawed: make(chan struct{}), conns: map[net.Conn]bool{}, dead: map[net.Conn]bool{}}
	var hosts []string
	for _, server := range to {
		u, err := url.Parse(server)
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		backend := u.Host
		hosts = append(hosts, l.Addr().String())
		u.Host = strings.Join(hosts, ",")
		p.url = u.String()
		p.listeners = append(p.listeners, l)
		p.wg.Go(func() { p.accept(l, backend) })
	}
	if len(to) > 1 {
		p.url += takesWrites
	}
	return p, nil
}

func (p *proxy) close() {
	for _, l := range p.listeners {
		l.Close()
	}
	close(p.closed)
	p.cutAll()
	p.wg.Wait()
}

func (p *proxy) accept(l net.Listener, backend string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client, backend) })
	}
}

func (p *proxy) serve(client net.Conn, backend string) {
	p.mu.Lock()
	refused := p.cut
	p.mu.Unlock()
	if refused {
		client.Close()
		return
	}
	p.gate(client)
	server, err := net.Dial("tcp", backend)
	if err != nil {
		client.Close()
		return
	}
	p.keep(client, server)
	defer p.drop(client, server)
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, client) })
	both.Go(func() { p.copy(client, server, client) })
	both.Wait()
}

// copy passes bytes on until one side ends, and then ends the other. client is one of them.
func (p *proxy) copy(to, from, client net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.gate(client)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// gate returns when bytes of a client's connection may pass, or it has ended.
func (p *proxy) gate(client net.Conn) {
	for waits := true; waits; {
		p.mu.Lock()
		delay, thawed := p.delay, p.thawed
		waits = p.frozen || p.dead[client]
		p.mu.Unlock()
		if delay > 0 {
			pass(delay, p.closed)
		}
		if !waits {
			return
		}
		select {
		case <-thawed:
		case <-p.closed:
			return
		}
	}
}

// someLocked returns about half of the connections of clients, and one at least if there is one.
func (p *proxy) someLocked(r *rand.Rand) (some []net.Conn) {
	for conn := range p.conns {
		client := slices.ContainsFunc(p.listeners, func(l net.Listener) bool { return conn.LocalAddr().String() == l.Addr().String() })
		if client && !p.dead[conn] && (len(some) == 0 || r.IntN(2) == 0) {
			some = append(some, conn)
		}
	}
	return some
}

// cutSome breaks some of the connections.
func (p *proxy) cutSome(r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.someLocked(r) {
		conn.Close()
	}
}

// deaden lets nothing pass any more on some connections, which stay open. New ones work.
func (p *proxy) deaden(r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.someLocked(r) {
		p.dead[conn] = true
	}
}

// cutDead breaks the connections on which nothing passes.
func (p *proxy) cutDead() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.dead {
		conn.Close()
	}
	clear(p.dead)
	p.openLocked()
}

func (p *proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = true
	}
	select {
	case <-p.closed:
		for _, conn := range conns {
			conn.Close()
		}
	default:
	}
}

func (p *proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
		delete(p.conns, conn)
		delete(p.dead, conn)
	}
}

// cutAll breaks every connection that there is.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		conn.Close()
	}
}

// refuse sets whether new connections are refused.
func (p *proxy) refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = refuse
}

// slow sets how much longer each piece takes on its way.
func (p *proxy) slow(by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = by
}

// freeze keeps everything back, both ways, on old and new connections, until thaw.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen {
		p.frozen = false
		p.openLocked()
	}
}

// openLocked lets everybody who waits at the gate go on; who comes then stays there if it must.
func (p *proxy) openLocked() {
	close(p.thawed)
	p.thawed = make(chan struct{})
}
