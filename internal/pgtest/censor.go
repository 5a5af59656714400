package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Censor is a way to a server on which some statements fail: every one that has a text in it which was refused, also where it
// was prepared before. So one statement of a process fails as often as it is tried, and no other does.
type Censor struct {
	URL string // through it

	listener net.Listener
	backend  string
	pumps    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	refused []string
	conns   map[net.Conn]bool
}

// NewCensor returns a way to the server of a URL, open until the end of the test, on which nothing is refused.
func NewCensor(t testing.TB, to string) *Censor {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatalf("open a censored way: %v", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("open a censored way: %v", err)
	}
	c := &Censor{listener: listener, backend: u.Host, conns: map[net.Conn]bool{}}
	u.Host = listener.Addr().String()
	c.URL = u.String()
	c.pumps.Go(c.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		c.mu.Lock()
		for conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.pumps.Wait()
	})
	return c
}

// Refuse has statements fail from now on that have one of the texts in them; no texts: none any more.
func (c *Censor) Refuse(texts ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused = texts
}

func (c *Censor) refuses(statement string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.refused {
		if strings.Contains(statement, text) {
			return true
		}
	}
	return false
}

func (c *Censor) accept() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp4", c.backend)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.mu.Lock()
		c.conns[client], c.conns[server] = true, true
		c.mu.Unlock()
		end := func() {
			_, _ = client.Close(), server.Close()
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.conns, client)
			delete(c.conns, server)
		}
		c.pumps.Go(func() {
			defer end()
			pump(client, server)
		})
		c.pumps.Go(func() {
			defer end()
			_ = c.read(client, server)
		})
	}
}

// pump copies what a server says.
func pump(client, server net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

const refusal = "refused by the test"

// read passes on what a client says, and has what is refused fail in the server: its errors are real ones.
func (c *Censor) read(client, server net.Conn) error {
	from := pgproto3.NewBackend(client, client)
	first, err := from.ReceiveStartupMessage()
	if err != nil {
		return fmt.Errorf("receive the first message: %w", err)
	}
	if err := send(server, first); err != nil {
		return err
	}
	if _, ok := first.(*pgproto3.StartupMessage); !ok {
		return errors.New("neither encryption nor a cancel request's answer is passed on")
	}
	prepared := map[string]string{}
	for {
		msg, err := from.Receive()
		if err != nil {
			return fmt.Errorf("receive a message: %w", err)
		}
		switch m := msg.(type) {
		case *pgproto3.Query:
			if c.refuses(m.String) {
				m.String = refusal
			}
		case *pgproto3.Parse:
			prepared[m.Name] = m.Query
			if c.refuses(m.Query) {
				m.Query = refusal
			}
		case *pgproto3.Bind:
			if c.refuses(prepared[m.PreparedStatement]) {
				m.PreparedStatement = refusal
			}
		}
		if err := send(server, msg); err != nil {
			return err
		}
	}
}

func send(server net.Conn, msg pgproto3.FrontendMessage) error {
	buf, err := msg.Encode(nil)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	if _, err := server.Write(buf); err != nil {
		return fmt.Errorf("pass a message on: %w", err)
	}
	return nil
}
