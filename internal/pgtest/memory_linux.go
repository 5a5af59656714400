package pgtest

import "syscall"

const (
	memoryRoom = 8 << 30 // bytes
	noExec     = 0x8     // ST_NOEXEC of statvfs(3): the library in exitFile could not be loaded
)

// inMemory reports whether a directory is in memory, with room for the data of test servers.
func inMemory(dir string) bool {
	const tmpfs = 0x01021994
	var s syscall.Statfs_t
	err := syscall.Statfs(dir, &s)
	return err == nil && s.Type == tmpfs && s.Flags&noExec == 0 && int64(s.Blocks)*s.Bsize >= memoryRoom //nolint:gosec // no such size
}
