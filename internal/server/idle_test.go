package server_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// tap notes the statements that go to a server.
type tap struct {
	wg sync.WaitGroup

	mu   sync.Mutex // guards seen
	seen []string   // each text once
}

func (p *tap) note(sql string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.seen, sql) {
		p.seen = append(p.seen, sql)
	}
}

// take returns what was seen since it was called last.
func (p *tap) take() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
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
	both.Go(func() { p.read(server, client); server.Close() })
	both.Go(func() { _, _ = io.Copy(client, server); client.Close() })
	both.Wait()
}

// read copies messages and notes the statements of Query and Bind.
func (p *tap) read(to io.Writer, from io.Reader) {
	prepared := map[string]string{}
	header := make([]byte, 4) // the first message has no type
	if _, err := io.ReadFull(from, header); err != nil {
		return
	}
	for {
		body := make([]byte, binary.BigEndian.Uint32(header[len(header)-4:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		switch words := strings.SplitN(string(body), "\x00", 3); header[0] {
		case 'Q':
			p.note(words[0])
		case 'P':
			prepared[words[0]] = words[1]
		case 'B':
			p.note(prepared[words[1]])
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
	w := servertest.NewOn(t, pgtest.Server(t).New(t, servertest.Apps...))
	want := w.Fleet(500)
	p, through := newTap(t, w.DB.URL)
	eu, us := servertest.NewPlace(), servertest.NewPlace()
	w.StartWith(func(c *config.Config) { c.DatabaseURL, c.DirectURL = config.NewURL(through), config.NewURL(through) }, servertest.Named("eu", eu), servertest.Named("us", us))
	eu.Eventually(t, want)
	w.Converged()
	w.Eventually("the leader sleeps", func() bool { return w.Series("awake") == 0 && w.Series("listening") == 1 })
	require.Greater(t, len(p.take()), 30, "the tap notes what a busy process asks")

	const beats = `SELECT max(beat)::text FROM reconciler.heartbeats`
	const terms = `SELECT string_agg(term::text, ' ' ORDER BY term) FROM (SELECT term FROM reconciler.targets UNION ALL SELECT term FROM reconciler.leases) AS l`
	var asked []string
	// A window is quiet if nothing happens in it that is logged, such as a lost connection. In the first one the end of the syncs
	// may still be asked about.
	for windows, quiet := 0, false; windows < 2 || !quiet; windows++ {
		require.Less(t, windows, 10, "no window is quiet: %s", w.Logged(""))
		before, last, logged := w.Text(terms), w.Text(beats), len(w.Logged(""))
		p.take()
		w.Settled("true", `SELECT (max(beat) >= $1::bigint + 2)::text FROM reconciler.heartbeats`, last)
		asked = p.take()
		quiet = w.Text(terms) == before && len(w.Logged("")) == logged
	}
	counts := map[string]int{}
	for _, statement := range asked {
		name, _, _ := strings.Cut(statement, " :")
		require.Contains(t, idle, name, "a process with nothing to do asks: %s", statement)
		counts[name]++
	}
	require.LessOrEqual(t, counts[stillInProgress], counts["-- name: LeaseHeartbeat"], "a tick may see a heartbeat in progress, and waits for nothing else")
}

const stillInProgress = "-- name: StillInProgress"

// idle are the statements of a process that has nothing to do, whatever it knows: heartbeats, fallback polls and pings; once in
// a while the definitions, what a person may have ordered, and housekeeping.
var idle = []string{
	stillInProgress, "-- ping", "DISCARD PLANS", "-- name: LeaseHeartbeat", "-- name: TickInsert",
	"-- name: ResourceList", "-- name: TargetSteering", "-- name: AppliesToOpen", "-- name: AppliesUnderWay",
	"-- name: Forget", "-- name: OutboxRetain", "-- name: OutboxUncaptured", "-- name: MisfitResources",
	"-- name: SourcesAltered", "SELECT resource, problem, remedy, healable FROM reconciler.capture_problems()",
}
