package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
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

	restart chan time.Duration // for how long to stay away
	gone    chan struct{}      // receives when a restart has ended the program
}

// Pooler starts a PgBouncer, which runs until the end of the test, with more lines for its section of settings. It is
// started again when it ends, as a service manager does: versions before 1.21 end when a statement is cancelled at the
// wrong moment (https://github.com/pgbouncer/pgbouncer/pull/846 and 928).
func (db *DB) Pooler(t testing.TB, settings string) *Pooler {
	t.Helper()
	p, err := db.newPooler(t, settings)
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

// newPooler writes the files of a pooler to the server's directory, which the server's user gets through to.
func (db *DB) newPooler(t testing.TB, settings string) (*Pooler, error) {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer") // not in every user's path
	}
	if err != nil {
		return nil, fmt.Errorf("pgbouncer is missing: apt-get install pgbouncer: %w", err)
	}
	port, err := pgserver.FreePort(t.Context())
	if err != nil {
		return nil, err
	}
	config := filepath.Join(db.server.Dir, pgserver.Unique("pooler-"))
	users := config + ".users"
	t.Cleanup(func() { _ = errors.Join(os.Remove(config), os.Remove(users)) }) // otherwise they go with the server
	text := fmt.Sprintf(`[databases]
%s = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 8
%s
`, db.Name, db.server.Port, port, users, settings)
	for path, content := range map[string]string{users: `"` + superuser + `" ""`, config: text} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil { //nolint:gosec // no secret, and another user reads it
			return nil, err
		}
	}
	through := pgserver.Server{Port: port}
	return &Pooler{
		URL: through.URL(url.User(superuser), db.Name), program: program, config: config,
		restart: make(chan time.Duration), gone: make(chan struct{}),
	}, nil
}

// run keeps the program running until ctx ends.
func (p *Pooler) run(ctx context.Context, t testing.TB) {
	for ctx.Err() == nil {
		var out bytes.Buffer
		cmd, err := pgserver.Command(ctx, "/", p.program, "-q", p.config) // it refuses to run as root
		cmd.Stdout, cmd.Stderr = &out, &out
		if err == nil {
			err = cmd.Start()
		}
		ended := make(chan error, 1)
		if err != nil {
			ended <- err
		} else {
			go func() { ended <- cmd.Wait() }()
		}
		select {
		case err := <-ended:
			if ctx.Err() == nil {
				t.Logf("pgbouncer ended: %v\n%s", err, out.String())
				pause(ctx, poolerPause)
			}
		case away := <-p.restart:
			_ = cmd.Process.Kill() // it may have ended by itself
			t.Logf("pgbouncer was killed: %v", <-ended)
			p.gone <- struct{}{}
			pause(ctx, away)
		}
	}
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
	select {
	case p.restart <- away:
		<-p.gone
	case <-t.Context().Done():
	}
	p.awaitReady(t)
}

// awaitReady returns when the pooler leads to the database.
func (p *Pooler) awaitReady(t testing.TB) {
	t.Helper()
	err := Poll(t.Context(), pgserver.StartTimeout, func() error {
		return pgserver.Exec(t.Context(), p.URL+"&default_query_exec_mode=exec", "SELECT 1")
	})
	if err != nil {
		t.Fatalf("pgbouncer does not answer: %v", err)
	}
}

// Poll calls look until it returns nil, ctx ends or it has had patience, and returns its last error. The pauses grow to a
// tenth of a second, or to four times as long as a look, at most two seconds: what a test asks all the time takes processors
// from what it waits for.
func Poll(ctx context.Context, patience time.Duration, look func() error) error {
	for begun := time.Now(); ; {
		looked := time.Now()
		err := look()
		waited := time.Since(begun)
		if err == nil || ctx.Err() != nil || waited >= patience {
			return err
		}
		pause(ctx, max(min(waited/10, 100*time.Millisecond), min(4*time.Since(looked), 2*time.Second), 5*time.Millisecond))
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
