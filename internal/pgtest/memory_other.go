//go:build !linux

package pgtest

func inMemory(string) bool { return false }
