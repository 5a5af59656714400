//go:build !linux

package process

import "syscall"

// groupAttr puts the program at the head of a process group of its own.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
