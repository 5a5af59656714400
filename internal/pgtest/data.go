package pgtest

import (
	"context"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// Both run in the data directory. The copy is kept in it: of a container nothing else may be on a volume.
const (
	keepScript    = `rm -f kept.tar && tar --exclude=./kept.tar -cf kept.tar .`
	putBackScript = `find . -mindepth 1 -maxdepth 1 ! -name kept.tar -exec rm -rf {} + && tar -xpf kept.tar`
)

// Stop stops the server in good order, ending every session.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.stop(t, pgserver.Fast)
}

// KeepData copies the files of the server, which must be stopped.
func (c *Cluster) KeepData(t testing.TB) {
	t.Helper()
	c.script(t, keepScript)
}

// PutBackData replaces the files of the server, which must be stopped, by the copy that KeepData made: what was
// committed since is lost.
func (c *Cluster) PutBackData(t testing.TB) {
	t.Helper()
	c.script(t, putBackScript)
}

func (c *Cluster) script(t testing.TB, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgserver.StartTimeout)
	defer cancel()
	if err := c.instance.Engine().Script(ctx, text); err != nil {
		t.Fatalf("copy the server's files: %v", err)
	}
}
