//go:build kubernetes && !linux

package kubetest

import "syscall"

func attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
