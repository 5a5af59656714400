package server_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// tap counts the statements that go to a server.
type tap struct {
	statements atomic.Int64
	wg         sync.WaitGroup
}

// newTap returns a tap, and the URL that leads through it.
func newTap(t *testing.T, to string) (*tap, string) {
	t.Helper()
	u, err := url.Parse(to)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	backend := u.Host
	u.Host = l.Addr().String()
	p := &tap{}
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.pass(client, backend) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.wg.Wait() // the server has closed its connections by now
	})
	return p, u.String()
}

func (p *tap) pass(client net.Conn, backend string) {
	defer client.Close()
	server, err := net.Dial("tcp", backend)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.count(server, client); server.Close() })
	both.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	both.Wait()
}

// count copies messages and counts those that run a statement: Query and Execute.
func (p *tap) count(to io.Writer, from io.Reader) {
	header := make([]byte, 4) // the first message has no type
	if _, err := io.ReadFull(from, header); err != nil {
		return
	}
	for {
		body := make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		if header[0] == 'Q' || header[0] == 'E' {
			p.statements.Add(1)
		}
		if _, err := to.Write(slices.Concat(header, body)); err != nil {
			return
		}
		header = make([]byte, 5)
		if _, err := io.ReadFull(from, header); err != nil {
			return
		}
	}
}

// C25: a process with nothing to do asks the database next to nothing, whatever it knows.
func TestIdleProcessAsksNextToNothing(t *testing.T) {
	t.Parallel()
	// A server of its own: transactions of other tests would keep the leader dozing, and looking.
	w := setupOn(t, pgtest.Server(t).New(t))
	want := w.fleet(500)
	p, through := newTap(t, w.db.URL)
	eu, us := newPlace(), newPlace()
	w.startWith(func(c *config.Config) { c.DatabaseURL, c.DirectURL = config.NewURL(through), config.NewURL(through) }, named("eu", eu), named("us", us))
	eu.eventually(t, want)
	w.converged()
	busy := p.statements.Load()
	require.Greater(t, busy, int64(30), "the tap counts")
	w.eventually("the leader sleeps", func() bool { return w.series("awake") == 0 && w.series("listening") == 1 })

	const seconds = 12
	timer := time.NewTimer(seconds * time.Second)
	defer timer.Stop()
	<-timer.C
	// Heartbeats, fallback polls, pings; once in a while the definitions, what a person may have ordered, and house-keeping.
	require.LessOrEqual(t, p.statements.Load()-busy, int64(3*seconds))
}
