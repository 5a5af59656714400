package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// Local is a server of this machine's own binaries.
type Local struct {
	Bin  string `json:"bin"` // directory of initdb, pg_ctl and postgres
	Data string `json:"data"`

	// Environment is that of a server that Start starts, in addition to what every server has.
	Environment []string `json:"-"`
	// Child is the server's process, and Ended is closed when it has ended: set by the process that started it without pg_ctl.
	// Others read postmaster.pid.
	Child int             `json:"-"`
	Ended <-chan struct{} `json:"-"`
}

// NewLocal returns a server with its data in dir.
func NewLocal(dir, bin string) *Local { return &Local{Bin: bin, Data: filepath.Join(dir, "data")} }

// LogFile is in the data directory, which the server's user can write to.
func (l *Local) LogFile() string { return filepath.Join(l.Data, "server.log") }

// MakeData makes the empty data directory.
func (l *Local) MakeData() error {
	if err := os.Mkdir(l.Data, 0o700); err != nil {
		return err
	}
	return give(l.Data)
}

// Initdb makes the data directory. The superuser needs a password, or none if it is "".
func (l *Local) Initdb(ctx context.Context, password string, args ...string) error {
	if err := l.MakeData(); err != nil {
		return err
	}
	args = append([]string{"-D", l.Data, "--username=" + Superuser, "--encoding=UTF8", "--no-sync", "--no-instructions"}, args...)
	if password == "" {
		return l.Run(ctx, "initdb", append(args, "--auth=trust")...)
	}
	file := l.Data + ".password"           // Every user can read arguments.
	defer func() { _ = os.Remove(file) }() // otherwise it goes with the directory
	err := os.WriteFile(file, []byte(password+"\n"), 0o600)
	if err == nil {
		err = give(file)
	}
	if err != nil {
		return err
	}
	return l.Run(ctx, "initdb", append(args, "--auth=scram-sha-256", "--pwfile="+file)...)
}

// Configure adds settings, such as fsync=off, to those of the data directory.
func (l *Local) Configure(port int, settings ...string) error {
	var conf strings.Builder
	for _, setting := range append(settings, "port="+strconv.Itoa(port), "listen_addresses=127.0.0.1", "unix_socket_directories=") {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Fprintf(&conf, "%s = '%s'\n", name, value)
	}
	// It exists already with the right owner, and is read last. The last of two values counts.
	file, err := os.OpenFile(filepath.Join(l.Data, "postgresql.auto.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(conf.String())
	return errors.Join(err, file.Close())
}

// Start starts the server with pg_ctl. It outlives this process.
func (l *Local) Start(ctx context.Context) error {
	cmd, err := Command(ctx, "/", l.Bin+"/pg_ctl", "start", "--silent", "--wait", "--timeout="+seconds(StartTimeout), "-D", l.Data, "-l", l.LogFile())
	cmd.Env = append(cmd.Env, l.Environment...)
	if err := run(cmd, err); err != nil {
		text, _ := l.Log(ctx) // pg_ctl names it when it is missing
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

// Stop stops the server.
func (l *Local) Stop(ctx context.Context, mode Mode) error {
	pid, err := l.process()
	if err != nil || pid == 0 {
		return err
	}
	_ = syscall.Kill(pid, syscall.SIGCONT) // A test may have stopped it with SIGSTOP.
	err = l.Run(ctx, "pg_ctl", "stop", "--silent", "--wait", "--timeout="+seconds(stopTimeout), "-D", l.Data, "-m", string(mode))
	if err == nil || mode != Immediate {
		return err
	}
	if pid, err = l.process(); err != nil || pid == 0 {
		return err
	}
	if err = syscall.Kill(pid, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
		err = nil // it has just ended
	}
	return err
}

// Destroy stops the server. Its data is in its directory.
func (l *Local) Destroy(ctx context.Context) error { return l.Stop(ctx, Immediate) }

// Alive returns an error if the started server has ended.
func (l *Local) Alive(context.Context) error {
	pid, err := l.process()
	if err == nil && pid == 0 {
		err = errors.New("the server has ended")
	}
	return err
}

// process returns the number of the server's process, 0 if it does not run.
func (l *Local) process() (pid int, err error) {
	if l.Child != 0 { // A child that starts has no arguments for a moment: this does not look at them.
		select {
		case <-l.Ended:
			return 0, nil
		default:
			return l.Child, nil
		}
	}
	text, err := os.ReadFile(filepath.Join(l.Data, "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		return 0, fmt.Errorf("find the server's process: %w", err)
	}
	// Another process may have got its number, and a dead one has no arguments.
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil && runtime.GOOS != "linux" {
		arguments, err = exec.CommandContext(context.Background(), "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	}
	if err != nil || !bytes.Contains(arguments, []byte(l.Data)) {
		return 0, nil
	}
	return pid, nil
}

// Log returns the server's log.
func (l *Local) Log(context.Context) (string, error) {
	text, err := os.ReadFile(l.LogFile())
	return string(text), err
}

// Script runs a shell script in the data directory.
func (l *Local) Script(ctx context.Context, text string) error {
	return run(Command(ctx, l.Data, "/bin/sh", "-c", text))
}

// Run runs one of PostgreSQL's programs.
func (l *Local) Run(ctx context.Context, program string, args ...string) error {
	// The user postgres may not be allowed into the current directory.
	return run(Command(ctx, "/", filepath.Join(l.Bin, program), args...))
}

// Command returns a command that runs as the server's user, out of reach of the terminal's Ctrl-C.
func Command(ctx context.Context, dir, program string, args ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.WaitDelay = time.Second // The server inherits no pipe, but should it ever, waiting must end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	uid, gid, err := serverUser()
	if uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	return cmd, err
}

// run runs what Command returned. The error has what the program printed.
func run(cmd *exec.Cmd, err error) error {
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, out)
	}
	return nil
}

// give makes a file the server's, when that runs as another user.
func give(path string) error {
	uid, gid, err := serverUser()
	if err != nil || uid == 0 {
		return err
	}
	return os.Chown(path, int(uid), int(gid))
}

// serverUser returns the user postgres when this process is root, otherwise 0: the server runs as the user of this process.
func serverUser() (uid, gid uint32, err error) {
	if os.Geteuid() != 0 {
		return 0, 0, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres to run it as: %w", err)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	group, groupErr := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group), errors.Join(err, groupErr)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
