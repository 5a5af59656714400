package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// poolerPause is for how long a pooler that ended by itself stays away.
const poolerPause = 100 * time.Millisecond

// Pooler is a PgBouncer in transaction mode in front of a database: it shares sessions out, and swallows LISTEN.
type Pooler struct {
	URL string // through it

	program, config string
	identity        *syscall.SysProcAttr

	mu      sync.Mutex // guards what follows
	process *os.Process
	away    chan struct{} // closed when it may start again; nil: it need not wait
}

// Pooler starts a PgBouncer, which runs until the end of the test, with more lines for its section of settings. It is
// started again when it ends, as a service manager does: versions before 1.21 end when a statement is cancelled at the
// wrong moment (https://github.com/pgbouncer/pgbouncer/pull/846 and 928).
func (db *DB) Pooler(t testing.TB, settings string) *Pooler {
	t.Helper()
	p, err := db.newPooler(t.Context(), t.TempDir(), settings)
	if err != nil {
		t.Fatalf("put a pooler in front of %s: %v", db.Name, err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx, t)
	}()
	t.Cleanup(func() {
		end()
		<-ended
	})
	p.awaitReady(t)
	return p
}

func (db *DB) newPooler(ctx context.Context, dir, settings string) (*Pooler, error) {
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // not in everybody's path
	}
	if err != nil {
		return nil, fmt.Errorf("pgbouncer is missing: apt-get install pgbouncer: %w", err)
	}
	server, err := url.Parse(db.URL)
	if err != nil {
		return nil, err
	}
	port, err := pgserver.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	p := &Pooler{program: program, config: filepath.Join(dir, "pgbouncer.ini")}
	users := filepath.Join(dir, "users")
	text := fmt.Appendf(nil, `[databases]
%s = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 8
%s
`, db.Name, server.Hostname(), server.Port(), port, users, settings)
	server.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p.URL = server.String()
	for path, content := range map[string][]byte{users: []byte(`"` + superuser + `" ""`), p.config: text} {
		if err := os.WriteFile(path, content, 0o644); err != nil { //nolint:gosec // no secret, and another user reads it
			return nil, err
		}
	}
	return p, p.asNobody(dir)
}

// asNobody lets the program run as a user without rights, and get to its files: as root it refuses to run.
func (p *Pooler) asNobody(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return err
	}
	p.identity = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode().Perm()&0o005 != 0o005 {
			err = os.Chmod(dir, 0o755) //nolint:gosec // see above
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run keeps the program running until ctx ends.
func (p *Pooler) run(ctx context.Context, t testing.TB) {
	for ctx.Err() == nil {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, p.program, "-q", p.config)
		cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = p.identity, &out, &out
		away, err := p.start(cmd)
		if away != nil {
			select {
			case <-away:
			case <-ctx.Done():
			}
			continue
		}
		if err == nil {
			err = cmd.Wait()
		}
		if !p.isAway() && ctx.Err() == nil {
			t.Logf("pgbouncer ended: %v\n%s", err, out.String())
			pause(ctx, poolerPause)
		}
	}
}

// start starts the program, unless it is to stay away: then it returns what is closed in the end.
func (p *Pooler) start(cmd *exec.Cmd) (away <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away != nil {
		return p.away, nil
	}
	err = cmd.Start()
	p.process = cmd.Process
	return nil, err
}

func (p *Pooler) isAway() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.away != nil
}

// PoolerAdmin is the setting with which Pause and Resume work.
const PoolerAdmin = "admin_users = " + superuser

// Pause has the pooler pass nothing on any more, once the transactions under way have ended. It does not wait for that.
func (p *Pooler) Pause(t testing.TB) {
	t.Helper()
	conn := p.console(t)
	go func() {
		ctx := context.Background()
		_, _ = conn.Exec(ctx, "PAUSE") // it returns when everything rests, or with Resume
		_ = conn.Close(ctx)            // as above
	}()
}

// Resume ends Pause. A pooler that was started again meanwhile is not paused.
func (p *Pooler) Resume(t testing.TB) {
	t.Helper()
	conn := p.console(t)
	_, _ = conn.Exec(t.Context(), "RESUME")
	_ = conn.Close(t.Context()) // nothing is open on it
}

func (p *Pooler) console(t testing.TB) *pgx.Conn {
	t.Helper()
	return connect(t, p.URL, func(config *pgx.ConnConfig) {
		config.Database, config.DefaultQueryExecMode = "pgbouncer", pgx.QueryExecModeSimpleProtocol
		config.RuntimeParams = nil
	})
}

// Restart has the pooler away for a while: every connection through it is cut.
func (p *Pooler) Restart(t testing.TB, away time.Duration) {
	t.Helper()
	back := make(chan struct{})
	p.mu.Lock()
	p.away = back
	if p.process != nil {
		_ = p.process.Kill() // it may have ended by itself
	}
	p.mu.Unlock()
	pause(t.Context(), away)
	p.mu.Lock()
	p.away = nil
	p.mu.Unlock()
	close(back)
	p.awaitReady(t)
}

// awaitReady returns when the pooler leads to the database.
func (p *Pooler) awaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgserver.StartTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, p.URL+"&default_query_exec_mode=exec")
		if err == nil {
			err = conn.Close(ctx)
		}
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("pgbouncer does not answer: %v", err)
		}
		pause(ctx, pingPeriod)
	}
}

// Poll calls look until it returns nil, ctx ends or it has had patience, and returns its last error. The pauses grow to a
// tenth of a second, and are at least four times as long as a look: what a test asks all the time takes processors from what
// it waits for.
func Poll(ctx context.Context, patience time.Duration, look func() error) error {
	for begun := time.Now(); ; {
		looked := time.Now()
		err := look()
		waited := time.Since(begun)
		if err == nil || ctx.Err() != nil || waited >= patience {
			return err
		}
		pause(ctx, max(min(waited/10, 100*time.Millisecond), 4*time.Since(looked), 5*time.Millisecond))
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
