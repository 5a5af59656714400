package devdb

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end the server when this process is killed. SIGQUIT is PostgreSQL's immediate stop.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT }
