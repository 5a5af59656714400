package process

import "syscall"

// groupAttr puts the program at the head of a process group of its own. It also has the kernel kill it when
// this process dies: a program left over from a killed owner would race with the one that the next owner starts.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
