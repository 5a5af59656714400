package faults_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// smallDisk is a small file system in a separate mount namespace, which needs no root and is gone with the test. Processes that
// use it must be started there.
type smallDisk struct {
	Dir   string   // where processes that enter find it
	Seen  string   // where this process finds it
	Enter []string // command that runs another one there

	t *testing.T
}

// newSmallDisk makes one of this size, such as 1m.
func newSmallDisk(t *testing.T, size string) *smallDisk {
	t.Helper()
	dir := t.TempDir()
	unshare, enter := []string{"--mount"}, []string{"nsenter", "--mount"}
	if os.Geteuid() != 0 {
		unshare, enter = append(unshare, "--map-root-user"), append(enter, "--user", "--preserve-credentials")
	}
	// cat ends with this process, however that ends, and the namespace with cat.
	script := fmt.Sprintf("mount -t tmpfs -o size=%s none %s && echo mounted && exec cat", size, dir)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", append(unshare, "sh", "-c", script)...)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // it has done its work
	})
	said, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err, stderr.String())
	require.Equal(t, "mounted\n", said)
	pid := strconv.Itoa(cmd.Process.Pid)
	return &smallDisk{Dir: dir, Seen: filepath.Join("/proc", pid, "root", dir), Enter: append(enter, "--target", pid), t: t}
}

func (d *smallDisk) ballast() string { return filepath.Join(d.Seen, "ballast") }

// fill leaves no room.
func (d *smallDisk) fill() {
	d.t.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(d.t, err)
	defer f.Close()
	_, err = io.Copy(f, zeros{})
	require.ErrorIs(d.t, err, syscall.ENOSPC)
}

// free gives the room back that fill took.
func (d *smallDisk) free() {
	d.t.Helper()
	require.NoError(d.t, os.Remove(d.ballast()))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
