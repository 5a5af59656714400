package faulttest_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// rarePooler is a PgBouncer in transaction mode in front of a database: it swallows LISTEN.
type rarePooler struct {
	URL string

	t               *testing.T
	program, config string
	cmd             *exec.Cmd
}

// newRarePooler starts one, which runs until the end of the test.
func newRarePooler(t *testing.T, databaseURL string) *rarePooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // not in everybody's path
	}
	require.NoError(t, err, "pgbouncer is missing: apt-get install pgbouncer")
	server, err := url.Parse(databaseURL)
	require.NoError(t, err)
	dir, port := t.TempDir(), rareFreePort(t)
	users, config := filepath.Join(dir, "users"), filepath.Join(dir, "pgbouncer.ini")
	require.NoError(t, os.WriteFile(users, []byte(`"postgres" ""`), 0o644))
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `[databases]
%s = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 8
`, server.Path[1:], server.Hostname(), server.Port(), port, users), 0o644))
	server.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p := &rarePooler{URL: server.String(), t: t, program: program, config: config}
	p.start()
	t.Cleanup(p.kill)
	return p
}

// start runs the pooler, and returns when it answers.
func (p *rarePooler) start() {
	p.t.Helper()
	p.cmd = exec.CommandContext(context.WithoutCancel(p.t.Context()), p.program, "-q", p.config)
	if os.Geteuid() == 0 { // which it refuses to run as
		nobody, err := user.Lookup("nobody")
		require.NoError(p.t, err)
		uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
		require.NoError(p.t, err)
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		for dir := filepath.Dir(p.config); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			require.NoError(p.t, os.Chmod(dir, 0o755))
		}
	}
	require.NoError(p.t, p.cmd.Start())
	rareEventually(p.t, rarePatience, func() error {
		conn, err := pgx.Connect(p.t.Context(), p.URL+"&default_query_exec_mode=exec")
		if err != nil {
			return err
		}
		return conn.Close(p.t.Context())
	}, "pgbouncer answers")
}

// kill ends the pooler and with it every connection through it.
func (p *rarePooler) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// restart has the pooler away for a while.
func (p *rarePooler) restart(away time.Duration) {
	p.t.Helper()
	p.kill()
	rarePass(away, nil)
	p.start()
}

func rareFreePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// C10, C21: who has nothing but a pooler gets every change by polling, also those of the time when it is away.
func TestRarePoolerThatIsRestartedLosesNothing(t *testing.T) {
	t.Parallel()
	r := rareChance(t)
	w := newRareWorld(t, pgtest.New(t))
	w.fill(100, "eu", "us")
	pooler := newRarePooler(t, w.db.URL)
	endpoint := newRareEndpoint(t, "127.0.0.1")
	config := w.configure("pooled", []rareObject{w.fileTarget("eu"), endpoint.target("us")},
		rareObject{"database_url": pooler.URL, "direct_url": pooler.URL, "poll_interval": "50ms"})
	start := rareStart{binary: rareBinary(t, "new"), config: config}
	d := w.start(start)
	d.awaits("listen_lost", "error", "LISTEN does not work here: a notification that this process sent did not come back (is direct_url a pooler?); changes are found by polling")
	writers := w.write(r, 100, "eu", "us")
	for range 2 {
		rarePass(500*time.Millisecond, d.exited)
		pooler.restart(time.Duration(r.Int64N(int64(time.Second))))
	}
	rarePass(500*time.Millisecond, d.exited)
	writers.stop()
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")

	// It found out by itself, and polls on.
	listening, err := d.metric("reconciler_listening")
	require.NoError(t, err)
	require.Zero(t, listening)
	notified, err := d.metric(`reconciler_wakeups_total{by="notify"}`)
	require.NoError(t, err)
	polled, err := d.metric(`reconciler_wakeups_total{by="poll"}`)
	require.NoError(t, err)
	require.Greater(t, polled, notified, "changes were found by notifications")
	w.exec(`UPDATE apps SET version = nextval('versions'); DELETE FROM apps WHERE id % 10 = 0`)
	w.wait(start)
	w.equal(w.files, "eu")
	w.equal(endpoint.have, "us")
	require.NoError(t, rareInOrder(endpoint.journal()))
	d.stop()
}
