//go:build long

package faulttest_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// rareLine is the network between a process and the database. It can be cut as a network is: bytes are lost, and neither
// side is told. Targets are reached on another way, which is not cut.
type rareLine struct {
	URL    string   // of the database, over this line
	Target string   // address of this machine for endpoints, which the process reaches over the line's cuts
	Enter  []string // command that runs a process at the other end

	forward *rareForwarder
	ns      *rareNamespace // nil: the forwarder does it all
}

// newRareProxyLine makes a line that is cut by a proxy keeping every byte back; anybody may run it.
func newRareProxyLine(t *testing.T, databaseURL string) *rareLine {
	t.Helper()
	l := &rareLine{Target: "127.0.0.1"}
	l.forward, l.URL = newRareForwarder(t, l.Target, databaseURL)
	return l
}

// newRareNamespaceLine makes a line out of a network namespace, which takes root. When it is cut, segments stay without
// acknowledgement, and SYNs without an answer.
func newRareNamespaceLine(t *testing.T, databaseURL string) *rareLine {
	t.Helper()
	ns := newRareNamespace(t)
	l := &rareLine{Target: ns.addresses[1], Enter: []string{"nsenter", "--net", "--target", ns.pid}, ns: ns}
	l.forward, l.URL = newRareForwarder(t, ns.addresses[0], databaseURL)
	return l
}

// rareLines are the kinds of lines that whoever runs the tests can make.
func rareLines() map[string]func(*testing.T, string) *rareLine {
	lines := map[string]func(*testing.T, string) *rareLine{"Proxy": newRareProxyLine}
	if os.Geteuid() == 0 {
		lines["Namespace"] = newRareNamespaceLine
	}
	return lines
}

// cut loses everything between the process and the database from now on.
func (l *rareLine) cut() {
	if l.ns != nil {
		l.ns.cut()
	} else {
		l.forward.hold(true)
	}
}

// heal ends the cut. What was sent meanwhile may arrive now.
func (l *rareLine) heal() {
	if l.ns != nil {
		l.ns.heal()
	} else {
		l.forward.hold(false)
	}
}

// rareNamespace is a network namespace with two addresses, each with a way to one of two addresses of this machine.
type rareNamespace struct {
	t         *testing.T
	pid       string
	here      string    // name of the device on this side
	there     string    // and on the other
	addresses [2]string // on this side: that of the database, that of targets
	others    [2]string // on the other side, for each
}

func newRareNamespace(t *testing.T) *rareNamespace {
	t.Helper()
	// cat ends with this process, however that ends, and the namespace with cat, and the devices with the namespace.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", "--net", "sh", "-c", "echo made && exec cat")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // it has done its work
	})
	said := make([]byte, len("made\n"))
	_, err = io.ReadFull(stdout, said)
	require.NoError(t, err)
	require.Equal(t, "made\n", string(said))

	id := rand.IntN(1 << 13)
	net := func(host int) string { return fmt.Sprintf("198.18.%d.%d", id>>5, id&31<<3+host) } // a /29 of a range for tests of networks
	n := &rareNamespace{
		t: t, pid: strconv.Itoa(cmd.Process.Pid), here: fmt.Sprintf("rare%dh", id), there: fmt.Sprintf("rare%dt", id),
		addresses: [2]string{net(1), net(2)}, others: [2]string{net(3), net(4)},
	}
	n.ip("link add " + n.here + " type veth peer name " + n.there + " netns " + n.pid)
	t.Cleanup(func() { _, _ = rareTry(t, "ip", "link", "del", n.here) }) // it may have gone with the namespace
	n.ipThere("link set lo up")
	for i := range n.addresses {
		n.ip("address add " + n.addresses[i] + "/29 dev " + n.here)
		n.ipThere("address add " + n.others[i] + "/29 dev " + n.there)
	}
	n.ip("link set " + n.here + " up")
	n.ipThere("link set " + n.there + " up")
	for i := range n.addresses {
		n.ipThere("route replace " + n.addresses[i] + "/32 dev " + n.there + " src " + n.others[i])
	}
	return n
}

func (n *rareNamespace) ip(args string) {
	n.t.Helper()
	rareRun(n.t, "ip", strings.Fields(args)...)
}

func (n *rareNamespace) ipThere(args string) {
	n.t.Helper()
	rareRun(n.t, "nsenter", append([]string{"--net", "--target", n.pid, "ip"}, strings.Fields(args)...)...)
}

// cut has each side send frames for the other to a device that is not there.
func (n *rareNamespace) cut() {
	n.t.Helper()
	const nobody = " lladdr 02:00:00:00:00:01 nud permanent dev "
	n.ipThere("neighbour replace " + n.addresses[0] + nobody + n.there)
	n.ip("neighbour replace " + n.others[0] + nobody + n.here)
}

func (n *rareNamespace) heal() {
	n.t.Helper()
	n.ip("neighbour del " + n.others[0] + " dev " + n.here)
	n.ipThere("neighbour del " + n.addresses[0] + " dev " + n.there)
}

// rareForwarder passes on connections to the server of a URL.
type rareForwarder struct {
	backend string
	wg      sync.WaitGroup

	mu    sync.Mutex    // guards what follows
	open  chan struct{} // closed while bytes pass
	held  bool
	ended bool
	conns map[net.Conn]bool
}

// newRareForwarder listens on an address of this machine until the end of the test.
func newRareForwarder(t *testing.T, address, to string) (f *rareForwarder, through string) {
	t.Helper()
	u, err := url.Parse(to)
	require.NoError(t, err)
	f = &rareForwarder{backend: u.Host, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(f.open)
	var listen net.ListenConfig
	listener, err := listen.Listen(context.WithoutCancel(t.Context()), "tcp", address+":0")
	require.NoError(t, err)
	f.wg.Go(func() { f.accept(listener) })
	t.Cleanup(func() {
		listener.Close()
		f.end()
		f.wg.Wait()
	})
	u.Host = listener.Addr().String()
	return f, u.String()
}

// hold keeps every byte back from now on, or no longer.
func (f *rareForwarder) hold(held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case held == f.held || f.ended:
	case held:
		f.open = make(chan struct{})
	default:
		close(f.open)
	}
	f.held = held
}

func (f *rareForwarder) end() {
	f.hold(false)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for conn := range f.conns {
		conn.Close()
	}
}

func (f *rareForwarder) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		f.wg.Go(func() { f.serve(client) })
	}
}

// pass waits until bytes may pass.
func (f *rareForwarder) pass() {
	f.mu.Lock()
	open := f.open
	f.mu.Unlock()
	<-open
}

// serve passes on one connection until one side has closed it.
func (f *rareForwarder) serve(client net.Conn) {
	f.pass()
	defer client.Close()
	server, err := net.Dial("tcp", f.backend)
	if err != nil {
		return
	}
	defer server.Close()
	if !f.keep(client, server) {
		return
	}
	defer f.drop(client, server)
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			f.pass()
			if n > 0 {
				if _, failed := to.Write(buf[:n]); failed != nil {
					err = failed
				}
			}
			if err != nil {
				client.Close()
				server.Close()
				return
			}
		}
	}
	both.Go(func() { copyTo(server, client) })
	both.Go(func() { copyTo(client, server) })
	both.Wait()
}

func (f *rareForwarder) keep(conns ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		f.conns[conn] = true
	}
	return !f.ended
}

func (f *rareForwarder) drop(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range conns {
		delete(f.conns, conn)
	}
}
