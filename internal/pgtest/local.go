package pgtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// exitFile is a library that replaces exit(). Each process of PostgreSQL tears down OpenSSL when it ends, which is nearly
// half of the processor time of a short session, and tests open thousands.
func exitFile(l *pgserver.Local) string { return filepath.Join(l.Data, "exit.so") }

// exitScript compiles a library that ends a process after PostgreSQL's own callbacks have run, without the destructors of
// libraries. It needs no headers.
const exitScript = `echo 'int fflush(void *); void _exit(int); void exit(int status) { fflush(0); _exit(status); }' |
	cc -shared -fPIC -nostdlib -x c -o exit.so -`

// makeExit compiles exitFile. Without a C compiler sessions just take longer.
func makeExit(ctx context.Context, l *pgserver.Local) error {
	if _, err := exec.LookPath("cc"); err != nil {
		return nil //nolint:nilerr // see above
	}
	return l.Script(ctx, exitScript)
}

// createLocal makes the data directory, as a copy: initdb takes ten times as long.
func createLocal(ctx context.Context, l *pgserver.Local, version, port int) error {
	original, err := fresh.data(ctx, l.Bin, version)
	if err != nil {
		return err
	}
	if err := l.MakeData(); err != nil {
		return err
	}
	if err := l.Script(ctx, "cp -a '"+original+"/.' ."); err != nil {
		return err
	}
	if err := renew(ctx, l); err != nil {
		return err
	}
	return configure(l, port)
}

// configure gives a server that has its data a port, what every test server has, and its own exit.
func configure(l *pgserver.Local, port int) error {
	if _, err := os.Stat(exitFile(l)); err == nil {
		l.Environment = []string{"LD_PRELOAD=" + exitFile(l)}
	}
	return l.Configure(port, settings()...)
}

// renew gives a copy a system identifier of its own: the product tells servers apart by it.
func renew(ctx context.Context, l *pgserver.Local) error {
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
	return l.Run(ctx, "pg_resetwal", "-D", l.Data)
}

// followLocal takes a base backup; the server streams from then on.
func followLocal(ctx context.Context, l *pgserver.Local, primary, port int) error {
	if err := l.MakeData(); err != nil {
		return err
	}
	if err := l.Run(ctx, "pg_basebackup", append(backupArgs(primary), "--pgdata="+l.Data)...); err != nil {
		return err
	}
	return configure(l, port)
}
