package pgtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pgreconciler/reconciler/internal/devdb"
)

// local is a server of this machine's own binaries.
type local struct {
	Bin  string `json:"bin"` // directory of initdb, pg_ctl and postgres
	Data string `json:"data"`

	environment []string // of the server, beside what every server has
}

func (l *local) logFile() string { return filepath.Join(l.Data, "server.log") }

// exitFile is a library that replaces exit(). Each process of PostgreSQL tears down OpenSSL when it ends, which is nearly
// half of the processor time of a short session, and tests open thousands.
func (l *local) exitFile() string { return filepath.Join(l.Data, "exit.so") }

// exitSource ends a process after PostgreSQL's own callbacks have run, without the destructors of libraries. It needs no headers.
const exitSource = "int fflush(void *); void _exit(int); void exit(int status) { fflush(0); _exit(status); }"

// makeExit compiles exitFile. Without a C compiler sessions just take longer.
func (l *local) makeExit(ctx context.Context) error {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	return l.runIn(ctx, "/", "/bin/sh", "-c", `printf '%s' "$1" | "$2" -shared -fPIC -nostdlib -x c -o "$3" -`, "sh", exitSource, cc, l.exitFile())
}

func newLocal(dir, bin string) *local {
	return &local{Bin: bin, Data: filepath.Join(dir, "data")}
}

// create makes the data directory, as a copy: initdb takes ten times as long.
func (l *local) create(ctx context.Context, version, port int) error {
	original, err := fresh.data(ctx, l.Bin, version)
	if err != nil {
		return err
	}
	if err := l.makeData(); err != nil {
		return err
	}
	if err := l.runIn(ctx, "/", "/bin/cp", "-a", original+"/.", l.Data); err != nil {
		return err
	}
	if err := l.renew(ctx); err != nil {
		return err
	}
	return l.configure(port)
}

// renew gives a copy a system identifier of its own: the product tells servers apart by it.
func (l *local) renew(ctx context.Context) error {
	path := filepath.Join(l.Data, "global", "pg_control")
	control, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// The identifier comes first. The checksum comes last, at a place that differs by version.
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	end := 8
	for end+4 < len(control) && binary.NativeEndian.Uint32(control[end:]) != crc32.Checksum(control[:end], castagnoli) {
		end += 4
	}
	if end+4 >= len(control) {
		return fmt.Errorf("%s has no checksum", path)
	}
	binary.NativeEndian.PutUint64(control, rand.Uint64()>>1)
	binary.NativeEndian.PutUint32(control[end:], crc32.Checksum(control[:end], castagnoli))
	if err := os.WriteFile(path, control, 0o600); err != nil {
		return err
	}
	return l.run(ctx, "pg_resetwal", "-D", l.Data)
}

// makeData makes the empty directory, with the right owner.
func (l *local) makeData() error {
	if err := os.Mkdir(l.Data, 0o700); err != nil || os.Geteuid() != 0 {
		return err
	}
	uid, gid, err := devdb.ServerUser()
	if err != nil {
		return err
	}
	return os.Chown(l.Data, int(uid), int(gid))
}

// initdbArgs asks for a linguistic collation where the version can (15 and later): what holds only under "C" shall fail here.
func initdbArgs(version int) []string {
	args := []string{"--username=" + superuser, "--auth=trust", "--encoding=UTF8", "--no-sync"}
	if version >= 15 {
		args = append(args, "--locale=C", "--locale-provider=icu", "--icu-locale=en-US")
	}
	return args
}

func (l *local) configure(port int) error {
	var conf strings.Builder
	for _, setting := range append(settings(),
		"port="+strconv.Itoa(port), "listen_addresses=127.0.0.1", "unix_socket_directories=") {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Fprintf(&conf, "%s = '%s'\n", name, value)
	}
	// postgresql.auto.conf exists already with the right owner, and comes last.
	return os.WriteFile(filepath.Join(l.Data, "postgresql.auto.conf"), []byte(conf.String()), 0o600)
}

func (l *local) start(ctx context.Context) error {
	err := l.run(ctx, "pg_ctl", "start", "--silent", "--wait", "--timeout="+seconds(startTimeout), "-D", l.Data, "-l", l.logFile())
	if err != nil {
		text, _ := l.readLog(ctx)
		return fmt.Errorf("%w\n%s", err, text)
	}
	return nil
}

func (l *local) stop(ctx context.Context, mode stopMode) error {
	return l.run(ctx, "pg_ctl", "stop", "--silent", "--wait", "--timeout="+seconds(stopTimeout), "-D", l.Data, "-m", string(mode))
}

func (l *local) destroy(ctx context.Context) error {
	pid, err := l.pid()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A test may have stopped the process with SIGSTOP; it could not hear pg_ctl then.
	_ = syscall.Kill(pid, syscall.SIGCONT)
	if err := l.stop(ctx, immediate); err == nil {
		return nil
	}
	if !l.runs(context.WithoutCancel(ctx), pid) {
		return nil
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

func (l *local) alive(ctx context.Context) error {
	pid, err := l.pid()
	if err == nil {
		if err = syscall.Kill(pid, 0); errors.Is(err, syscall.EPERM) {
			err = nil
		}
	}
	if err == nil && !l.runs(ctx, pid) {
		err = fmt.Errorf("process %d is another one", pid)
	}
	if err != nil {
		return fmt.Errorf("the server has ended: %w", err)
	}
	return nil
}

// pid is the first line of postmaster.pid.
func (l *local) pid() (int, error) {
	text, err := os.ReadFile(filepath.Join(l.Data, "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(line))
}

// runs says whether pid is this server, and not a process that got its number later.
func (l *local) runs(ctx context.Context, pid int) bool {
	out, err := exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), l.Data)
}

func (l *local) readLog(context.Context) (string, error) {
	text, err := os.ReadFile(l.logFile())
	return string(text), err
}

func (l *local) script(ctx context.Context, text string) error {
	return l.runIn(ctx, l.Data, "/bin/sh", "-c", text)
}

// run runs one of PostgreSQL's programs.
func (l *local) run(ctx context.Context, program string, args ...string) error {
	// The user postgres may not be allowed into the current directory.
	return l.runIn(ctx, "/", filepath.Join(l.Bin, program), args...)
}

// runIn runs a program as the right user and returns what it printed as the error.
func (l *local) runIn(ctx context.Context, dir, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	if filepath.Base(program) == "pg_ctl" {
		if _, err := os.Stat(l.exitFile()); err == nil {
			cmd.Env = append(cmd.Env, "LD_PRELOAD="+l.exitFile())
		}
		cmd.Env = append(cmd.Env, l.environment...)
	}
	// A group of its own: Ctrl-C in the terminal ends the tests, and the reaper ends the server.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		uid, gid, err := devdb.ServerUser()
		if err != nil {
			return err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
	// The server inherits no pipe, but should it ever, waiting must end all the same.
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
