package leader

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// proxy stands between a process and its server, as a pooler or a bad network does.
type proxy struct {
	// Startup may change what a session asks for; nil: it changes nothing. Set before the first connection.
	Startup func(*pgproto3.StartupMessage)

	listener net.Listener
	backend  string
	wg       sync.WaitGroup

	mu      sync.Mutex // guards what follows
	swallow bool       // notifications do not come through, as in a pooler in transaction mode
	frozen  string     // part of the application_name of sessions whose bytes are kept back; "": none
	thawed  chan struct{}
	conns   map[net.Conn]bool
	names   map[string]int // sessions so far, by application_name
}

// newProxy returns a proxy to the server of a URL, and the URL that leads through it.
func newProxy(t *testing.T, to string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(to)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, backend: u.Host, thawed: make(chan struct{}), conns: map[net.Conn]bool{}, names: map[string]int{}}
	u.Host = l.Addr().String()
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for conn := range p.conns {
			conn.Close()
		}
		p.mu.Unlock()
		p.freeze("")
		p.wg.Wait()
	})
	return p, u.String()
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

// serve passes on one session.
func (p *proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.backend)
	if err != nil {
		client.Close()
		return
	}
	p.keep(client, server)
	defer p.drop(client, server)
	startup, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	if err != nil {
		return
	}
	name := ""
	if message, ok := startup.(*pgproto3.StartupMessage); ok {
		name = message.Parameters["application_name"]
		if p.Startup != nil {
			p.Startup(message)
		}
	}
	p.mu.Lock()
	p.names[name]++
	p.mu.Unlock()
	raw, err := startup.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(raw); err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(server, client, name); server.Close() })
	both.Go(func() { p.answers(client, server, name); client.Close() })
	both.Wait()
}

func (p *proxy) keep(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = true
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

// forward copies what a client says.
func (p *proxy) forward(to io.Writer, from io.Reader, name string) {
	buffer := make([]byte, 32*1024)
	for {
		n, err := from.Read(buffer)
		p.gate(name)
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

// answers copies what a server says, message by message, without the notifications if they are to be swallowed.
func (p *proxy) answers(to io.Writer, from io.Reader, name string) {
	header := make([]byte, 5)
	for {
		if _, err := io.ReadFull(from, header); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(header[1:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		p.gate(name)
		if header[0] == 'A' && p.swallows() {
			continue
		}
		if _, err := to.Write(append(header[:5:5], body...)); err != nil {
			return
		}
	}
}

func (p *proxy) swallows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallow
}

func (p *proxy) setSwallow(swallow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = swallow
}

// freeze keeps back everything of the sessions whose application_name has this part, both ways; "" lets all go on.
func (p *proxy) freeze(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = part
	if part == "" {
		close(p.thawed)
		p.thawed = make(chan struct{})
	}
}

// gate returns when a session's bytes may pass.
func (p *proxy) gate(name string) {
	for {
		p.mu.Lock()
		frozen, thawed := p.frozen != "" && strings.Contains(name, p.frozen), p.thawed
		p.mu.Unlock()
		if !frozen {
			return
		}
		<-thawed
	}
}

// sessions returns how many sessions of a name there have been.
func (p *proxy) sessions(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.names[name]
}
