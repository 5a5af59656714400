//go:build kubernetes

package kubetest

import "syscall"

// attr has the kernel kill a program when the thread that started it ends, also when the test binary is killed.
func attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
