//go:build !linux

package main

import (
	"os/exec"
	"syscall"
)

// detach keeps Ctrl-C in the terminal from a process.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
