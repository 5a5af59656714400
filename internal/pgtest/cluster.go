package pgtest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// Cluster is a server that belongs to one test, to be restarted and crashed. Its URLs stay the same throughout.
type Cluster struct {
	instance *instance
}

// Server starts a server for this test alone; that takes seconds. It is gone after the test.
func Server(t testing.TB) *Cluster {
	t.Helper()
	return own(t, "own_", start)
}

func own(t testing.TB, prefix string, start starter) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), pgserver.StartTimeout)
	defer cancel()
	dir := filepath.Join(baseDir(), pgserver.Unique(prefix))
	users, i, err := obtain(ctx, dir, 0, start)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("server log:\n%s", i.log(t))
		}
		_ = users.Close() // Its reaper ends the server: on a busy machine, an engine takes long.
	})
	return &Cluster{instance: i}
}

// New is the function New on this server.
func (c *Cluster) New(t testing.TB, setup ...string) *DB {
	t.Helper()
	return c.instance.database(t, setup)
}

// Empty is the function Empty on this server.
func (c *Cluster) Empty(t testing.TB) *DB {
	t.Helper()
	return create(t, c.instance, "template0")
}

// URL returns the superuser's URL of a database, such as "postgres".
func (c *Cluster) URL(database string) string { return c.instance.url(superuser, database) }

// Version returns the major version, such as 15.
func (c *Cluster) Version() int { return c.instance.Version }

// Restart stops the server in good order, ending every session, and returns when it takes connections again.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	c.stop(t, pgserver.Fast)
	c.Start(t)
}

// StopImmediate stops the server as a crash does: what was not flushed is lost, and Start recovers.
func (c *Cluster) StopImmediate(t testing.TB) {
	t.Helper()
	c.stop(t, pgserver.Immediate)
}

// Start starts the stopped server and returns when it takes connections.
func (c *Cluster) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgserver.StartTimeout)
	defer cancel()
	if err := c.instance.start(ctx); err != nil {
		t.Fatalf("start the server: %v", err)
	}
}

func (c *Cluster) stop(t testing.TB, mode pgserver.Mode) {
	t.Helper()
	if err := c.instance.Engine().Stop(t.Context(), mode); err != nil {
		t.Fatalf("stop the server: %v", err)
	}
}

// Stop stops the server in good order, ending every session.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.stop(t, pgserver.Fast)
}

// KeepData copies the files of the server, which must be stopped.
func (c *Cluster) KeepData(t testing.TB) {
	t.Helper()
	c.script(t, `rm -f kept.tar && tar --exclude=./kept.tar -cf kept.tar .`)
}

// PutBackData replaces the files of the server, which must be stopped, by the copy that KeepData made: what was
// committed since is lost.
func (c *Cluster) PutBackData(t testing.TB) {
	t.Helper()
	c.script(t, `find . -mindepth 1 -maxdepth 1 ! -name kept.tar -exec rm -rf {} + && tar -xpf kept.tar`)
}

// script runs in the data directory. The copy is kept there: of a container nothing else may be on a volume.
func (c *Cluster) script(t testing.TB, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgserver.StartTimeout)
	defer cancel()
	if err := c.instance.Engine().Script(ctx, text); err != nil {
		t.Fatalf("copy the server's files: %v", err)
	}
}
