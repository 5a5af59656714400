package pgtest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Line is a way to a server on which a test decides what passes, as a network, a pooler or a failover does. It reads the
// protocol, so connections must not be encrypted.
type Line struct {
	URL string // through it
	// Startup may change what a session asks for; nil: it changes nothing. Set it before the first connection.
	Startup func(*pgproto3.StartupMessage)

	listener net.Listener
	pumps    sync.WaitGroup

	mu       sync.Mutex // guards what follows
	backend  string
	refused  bool     // new connections are closed at once
	muted    bool     // notifications do not pass
	failing  []string // texts of statements that fail
	frozen   bool     // nothing passes of sessions with part in their name
	part     string
	thawed   chan struct{} // closed, and replaced, by Thaw
	wires    map[*wire]bool
	sessions map[string]int // so far, by application_name
}

// wire is one connection through a line.
type wire struct {
	ends     [2]net.Conn
	name     string            // application_name
	prepared map[string]string // statements by name
	cut      chan struct{}     // closed with its ends
	swallow  bool              // guarded by the line
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
	l := &Line{listener: listener, backend: u.Host, thawed: make(chan struct{}), wires: map[*wire]bool{}, sessions: map[string]int{}}
	u.Host = listener.Addr().String()
	l.URL = u.String()
	l.pumps.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			l.pumps.Go(func() { l.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		l.Refuse(true)
		l.Cut()
		l.pumps.Wait()
	})
	return l
}

// Swallow lets nothing pass on the connections that there are, either way, and tells neither end. New ones work.
func (l *Line) Swallow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		w.swallow = true
	}
}

// Cut ends the connections that there are. New ones work.
func (l *Line) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		l.endLocked(w)
	}
}

// Refuse sets whether new connections are closed at once.
func (l *Line) Refuse(refuse bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = refuse
}

// Freeze keeps everything back, both ways, of present and future sessions with part in their application_name, until Thaw or
// Cut. The end of a connection is kept back too.
func (l *Line) Freeze(part string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen, l.part = true, part
}

// Thaw lets everything pass that Freeze has kept back.
func (l *Line) Thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen = false
	close(l.thawed)
	l.thawed = make(chan struct{})
}

// Mute sets whether notifications are lost, as in a pooler in transaction mode.
func (l *Line) Mute(mute bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.muted = mute
}

// Fail has statements fail from now on that have one of the texts in them, also those that were prepared before; no texts:
// none any more.
func (l *Line) Fail(texts ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failing = texts
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

// Sessions returns how many sessions with an application_name there have been.
func (l *Line) Sessions(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[name]
}

// serve passes on one connection.
func (l *Line) serve(client net.Conn) {
	w, err := l.open(client)
	if err != nil {
		_ = client.Close()
		return
	}
	server := w.ends[1]
	startup, err := pgproto3.NewBackend(client, client).ReceiveStartupMessage()
	if err == nil {
		err = l.start(w, server, startup)
	}
	if err != nil {
		l.end(w, client)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(w, client, server, l.request) })
	both.Go(func() { l.pump(w, server, client, l.answer) })
	both.Wait()
}

func (l *Line) open(client net.Conn) (*wire, error) {
	l.mu.Lock()
	backend, refused := l.backend, l.refused
	l.mu.Unlock()
	if refused {
		return nil, errors.New("connections are refused")
	}
	server, err := net.Dial("tcp", backend) //nolint:noctx // a server of this machine answers or refuses at once
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused {
		_ = server.Close()
		return nil, errors.New("connections are refused")
	}
	w := &wire{ends: [2]net.Conn{client, server}, prepared: map[string]string{}, cut: make(chan struct{})}
	l.wires[w] = true
	return w, nil
}

// start passes on the first message.
func (l *Line) start(w *wire, server net.Conn, first pgproto3.FrontendMessage) error {
	if m, ok := first.(*pgproto3.StartupMessage); ok {
		w.name = m.Parameters["application_name"]
		if l.Startup != nil {
			l.Startup(m)
		}
	}
	l.mu.Lock()
	l.sessions[w.name]++
	l.mu.Unlock()
	if !l.passes(w) {
		return nil
	}
	raw, err := first.Encode(nil)
	if err != nil {
		return fmt.Errorf("encode the first message: %w", err)
	}
	if _, err := server.Write(raw); err != nil {
		return fmt.Errorf("pass the first message on: %w", err)
	}
	return nil
}

// pump passes messages on, as edit returns them, until one end closes.
func (l *Line) pump(w *wire, from, to net.Conn, edit func(w *wire, message []byte) []byte) {
	r := bufio.NewReader(from)
	for {
		message, err := readMessage(r)
		if passes := l.passes(w); passes && err == nil {
			_, err = to.Write(edit(w, message))
		}
		if err != nil {
			l.end(w, from)
			return
		}
	}
}

// readMessage returns the next message, from its type on.
func readMessage(r *bufio.Reader) ([]byte, error) {
	header, err := r.Peek(5)
	if err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	message := make([]byte, 1+binary.BigEndian.Uint32(header[1:]))
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, fmt.Errorf("read a message: %w", err)
	}
	return message, nil
}

// passes waits until a message of a connection may pass, and reports whether it does.
func (l *Line) passes(w *wire) bool {
	for {
		l.mu.Lock()
		frozen, thawed, swallow := l.frozen && strings.Contains(w.name, l.part), l.thawed, w.swallow
		l.mu.Unlock()
		if !frozen {
			return !swallow
		}
		select {
		case <-thawed:
		case <-w.cut:
			return false
		}
	}
}

// end ends a connection whose end from has closed. Where everything is swallowed, the other end does not see it; Cut still
// finds it.
func (l *Line) end(w *wire, from net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = from.Close()
	if !w.swallow && l.wires[w] {
		l.endLocked(w)
	}
}

func (l *Line) endLocked(w *wire) {
	delete(l.wires, w)
	close(w.cut)
	for _, end := range w.ends {
		_ = end.Close()
	}
}

// answer returns a message of the server as the client gets it; nil: not at all.
func (l *Line) answer(_ *wire, message []byte) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.muted && message[0] == 'A' {
		return nil
	}
	return message
}

// request returns a message of a client as the server gets it. What is to fail fails in the server, so that its errors are real.
func (l *Line) request(w *wire, message []byte) []byte {
	const refusal = "refused by the test"
	var edited []byte
	var err error
	switch body := message[5:]; message[0] {
	case 'Q':
		var m pgproto3.Query
		if err = m.Decode(body); err == nil && l.fails(m.String) {
			m.String = refusal
			edited, err = m.Encode(nil)
		}
	case 'P':
		var m pgproto3.Parse
		if err = m.Decode(body); err == nil {
			w.prepared[m.Name] = m.Query
			if l.fails(m.Query) {
				m.Query = refusal
				edited, err = m.Encode(nil)
			}
		}
	case 'B':
		var m pgproto3.Bind
		if err = m.Decode(body); err == nil && l.fails(w.prepared[m.PreparedStatement]) {
			m.PreparedStatement = refusal
			edited, err = m.Encode(nil)
		}
	}
	if err != nil || edited == nil {
		return message
	}
	return edited
}

func (l *Line) fails(statement string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.failing {
		if strings.Contains(statement, text) {
			return true
		}
	}
	return false
}
