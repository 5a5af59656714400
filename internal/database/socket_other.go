//go:build !linux

package database

import "syscall"

// setUserTimeout leaves it to keepalives.
func setUserTimeout(string, string, syscall.RawConn) error { return nil }
