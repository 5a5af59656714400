package devdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// logTail is how much of a server's log an error shows.
const logTail = 2000

// endPause is the pause between two looks at a server that was told to end.
const endPause = 20 * time.Millisecond

// settings are the same for every engine. What is thrown away need not survive a crash.
func settings(durable bool) []string {
	always := []string{"max_connections=100", "timezone=UTC", "log_timezone=UTC"}
	if durable {
		return always
	}
	return append(always, "fsync=off", "full_page_writes=off", "synchronous_commit=off")
}

// local is a server of this machine's own binaries.
type local struct {
	Bin     string `json:"bin"` // directory of initdb and postgres
	Data    string `json:"data"`
	Version string `json:"version"`

	// Set in the process that started the server; others go by the server's own file.
	child int
	ended <-chan struct{}
}

func newLocal(dir, bin, version string) *local {
	return &local{Bin: bin, Data: filepath.Join(dir, "data"), Version: version}
}

func (l *local) logFile() string { return filepath.Join(filepath.Dir(l.Data), "server.log") }

func (l *local) describe() string { return fmt.Sprintf("%s (%s)", l.Version, l.Bin) }

func (l *local) restart(port int) string {
	command := fmt.Sprintf("%s -D %s -p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories=", filepath.Join(l.Bin, "postgres"), l.Data, port)
	if os.Geteuid() == 0 {
		return "su postgres -c '" + command + "'"
	}
	return command
}

func (l *local) start(ctx context.Context, password string, settings []string) (int, <-chan struct{}, error) {
	if err := l.create(ctx, password); err != nil {
		return 0, nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return 0, nil, err
	}
	args := []string{"-D", l.Data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	log, err := os.OpenFile(l.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, nil, fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(l.Bin, "postgres"), args...) //nolint:noctx // it outlives ctx; Stop ends it
	cmd.Stdout, cmd.Stderr = log, log
	if err := prepare(cmd); err != nil {
		return 0, nil, err
	}
	dieWithParent(cmd)
	if l.ended, err = spawn(cmd); err != nil {
		return 0, nil, fmt.Errorf("start the server: %w", err)
	}
	l.child = cmd.Process.Pid
	return port, l.ended, nil
}

// spawn starts a server and waits for its end. Both happen on one thread, which lives as long as the server: when a
// thread ends, the kernel takes it for the parent's death.
func spawn(cmd *exec.Cmd) (<-chan struct{}, error) {
	started := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // Its log says why.
		}
	}()
	return ended, <-started
}

// create makes the data directory.
func (l *local) create(ctx context.Context, password string) error {
	if err := os.Mkdir(l.Data, 0o700); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	if err := give(l.Data); err != nil {
		return err
	}
	passwords := filepath.Join(filepath.Dir(l.Data), "password")
	if err := os.WriteFile(passwords, []byte(password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	defer func() { _ = os.Remove(passwords) }() // else it goes with the directory
	if err := give(passwords); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(l.Bin, "initdb"), "-D", l.Data, "--username="+superuser, "--pwfile="+passwords,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := prepare(cmd); err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, tail(out.String()))
	}
	return nil
}

func (l *local) stop(ctx context.Context) error {
	pid, err := l.pid()
	if errors.Is(err, os.ErrNotExist) || err == nil && l.gone(pid) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the server's process: %w", err)
	}
	// SIGQUIT is PostgreSQL's immediate stop: nothing here is to be kept but by Keep, and then it recovers.
	for _, signal := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the server's process %d: %w", pid, err)
		}
		if l.waitGone(ctx, pid) {
			return nil
		}
	}
	return fmt.Errorf("the server's process %d does not end", pid)
}

// waitGone waits for half of the time that is left, and reports whether the process ended.
func (l *local) waitGone(ctx context.Context, pid int) bool {
	patience := stopTimeout / 2
	if deadline, ok := ctx.Deadline(); ok {
		patience = time.Until(deadline) / 2
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if l.gone(pid) {
			return true
		}
		<-time.After(endPause)
	}
	return l.gone(pid)
}

func (l *local) gone(pid int) bool {
	if l.ended == nil {
		return !l.runs(pid)
	}
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// remove has nothing to do: everything is in the directory.
func (*local) remove(context.Context) error { return nil }

// pid is that of the child, or the first line of postmaster.pid.
func (l *local) pid() (int, error) {
	if l.child != 0 {
		return l.child, nil
	}
	text, err := os.ReadFile(filepath.Join(l.Data, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

func (l *local) log(context.Context) string {
	text, err := os.ReadFile(l.logFile())
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	return tail(string(text))
}

func tail(text string) string {
	if len(text) > logTail {
		text = "..." + text[len(text)-logTail:]
	}
	return strings.TrimSpace(text)
}

// give makes a file the server's, when that runs as another user.
func give(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := ServerUser()
	if err != nil {
		return err
	}
	if err := os.Chown(path, int(uid), int(gid)); err != nil {
		return fmt.Errorf("give the server what is its own: %w", err)
	}
	return nil
}

// prepare makes a command of PostgreSQL's run as the right user, out of reach of the terminal's signals.
func prepare(cmd *exec.Cmd) error {
	cmd.Dir = "/" // The user postgres may not be allowed into the current one.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	detach(cmd)
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := ServerUser()
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	return nil
}

// ServerUser is who the server runs as when this process is root, which PostgreSQL refuses.
func ServerUser() (uid, gid uint32, err error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres to run it as: %w", err)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("read the id of user postgres: %w", err)
	}
	group, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("read the group of user postgres: %w", err)
	}
	return uint32(id), uint32(group), nil
}

func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	address, err := netip.ParseAddrPort(listener.Addr().String())
	return int(address.Port()), errors.Join(err, listener.Close())
}
