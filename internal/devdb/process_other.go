//go:build !linux

package devdb

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
)

// dieWithParent does nothing where the kernel cannot do it: the next run ends the server.
func dieWithParent(*exec.Cmd) {}

// runs reports whether pid is this server, and not a process that got its number later, or a dead one.
func (l *local) runs(pid int) bool {
	out, err := exec.CommandContext(context.Background(), "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), l.Data)
}
