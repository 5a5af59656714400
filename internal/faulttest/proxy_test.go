package faulttest_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// proxy stands between one replica and PostgreSQL, as a network does.
type proxy struct {
	listener net.Listener
	backend  string
	url      string // of the database, through the proxy
	wg       sync.WaitGroup

	mu     sync.Mutex // guards what follows
	cut    bool       // new connections are closed at once
	delay  time.Duration
	frozen bool
	closed chan struct{} // closed with the proxy
	thawed chan struct{} // closed when frozen ends
	conns  map[net.Conn]bool
}

func newProxy(to string) (*proxy, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, backend: u.Host, closed: make(chan struct{}), thawed: make(chan struct{}), conns: map[net.Conn]bool{}}
	u.Host = l.Addr().String()
	p.url = u.String()
	p.wg.Go(p.accept)
	return p, nil
}

func (p *proxy) close() {
	p.listener.Close()
	close(p.closed)
	p.cutAll()
	p.wg.Wait()
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	refused := p.cut
	p.mu.Unlock()
	if refused {
		client.Close()
		return
	}
	p.gate()
	server, err := net.Dial("tcp", p.backend)
	if err != nil {
		client.Close()
		return
	}
	p.keep(client, server)
	defer p.drop(client, server)
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client) })
	both.Go(func() { p.copy(client, server) })
	both.Wait()
}

// copy passes bytes on until one side ends, and then ends the other.
func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		p.gate()
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

// gate returns when bytes may pass.
func (p *proxy) gate() {
	p.mu.Lock()
	delay, frozen, thawed := p.delay, p.frozen, p.thawed
	p.mu.Unlock()
	if delay > 0 {
		pass(delay, p.closed)
	}
	if frozen {
		select {
		case <-thawed:
		case <-p.closed:
		}
	}
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
		close(p.thawed)
		p.thawed = make(chan struct{})
	}
}

// A tester whose faults do nothing proves nothing.
func TestProxyCutsDelaysAndFreezes(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn) // until the other side ends
				conn.Close()
			}()
		}
	}()
	p, err := newProxy("postgres://" + l.Addr().String() + "/")
	require.NoError(t, err)
	defer p.close()
	conn, err := net.Dial("tcp", p.listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	answered := make(chan error, 1)
	ask := func() {
		_, err := conn.Write([]byte("x"))
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 1))
		}
		answered <- err
	}
	ask()
	require.NoError(t, <-answered)

	p.freeze()
	go ask()
	select {
	case err := <-answered:
		require.Fail(t, "a frozen proxy passes nothing", "%v", err)
	case <-time.After(100 * time.Millisecond):
	}
	p.thaw()
	require.NoError(t, <-answered)

	p.slow(50 * time.Millisecond)
	begun := time.Now()
	ask()
	require.NoError(t, <-answered)
	require.GreaterOrEqual(t, time.Since(begun), 100*time.Millisecond, "both ways")
	p.slow(0)

	p.refuse(true)
	p.cutAll()
	ask()
	require.Error(t, <-answered)
	other, err := net.Dial("tcp", p.listener.Addr().String())
	require.NoError(t, err)
	defer other.Close()
	_, err = io.ReadFull(other, make([]byte, 1))
	require.Error(t, err)
}
