package devdb

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end the server when this process is killed. SIGQUIT is PostgreSQL's immediate stop.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }

// runs reports whether pid is this server, and not a process that got its number later, or a dead one.
func (l *local) runs(pid int) bool {
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(arguments, []byte(l.Data))
}
