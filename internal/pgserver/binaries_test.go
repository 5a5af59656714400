package pgserver

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInstalledServersNewestFirst(t *testing.T) { // not parallel: it changes PATH
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	globs := BinaryGlobs
	BinaryGlobs = []string{filepath.Join(dir, "*", "bin")}
	t.Cleanup(func() { BinaryGlobs = globs })
	require.Empty(t, Installed(t.Context()))
	install := func(name, version string) string {
		bin := filepath.Join(dir, name, "bin")
		require.NoError(t, os.MkdirAll(bin, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "initdb"), nil, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(bin, "postgres"), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) "+version+"'\n"), 0o700))
		return bin
	}
	old, middle, newest := install("9.6", "9.6"), install("a", "15.11"), install("16.2", "16.2")
	install("b", "15.2")
	require.NoError(t, os.Remove(filepath.Join(install("17", "17.1"), "initdb")))
	require.Equal(t, []Binaries{{newest, "16.2"}, {middle, "15.11"}, {old, "9.6"}}, Installed(t.Context()))
	require.Equal(t, 15, Binaries{Version: "15.11"}.Major())
}
