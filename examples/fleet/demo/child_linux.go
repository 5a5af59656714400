package main

import (
	"os/exec"
	"syscall"
)

// detach keeps Ctrl-C in the terminal from a process, and has the kernel end it when this one is killed.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
