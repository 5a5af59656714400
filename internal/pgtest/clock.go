package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// Clock is the clock of a server, which can be set. Only the time of day is: the monotonic clock goes on as it does.
type Clock struct {
	file string
}

// Where distributions put libfaketime: the variant without locks, for PostgreSQL asks for the time in signal handlers.
var faketimeGlobs = []string{
	"/usr/lib/*/faketime/libfaketime.so.1",
	"/usr/lib*/faketime/libfaketime.so.1",
	"/usr/local/lib/faketime/libfaketime.so.1",
}

// FakeClock restarts the server with a clock that can be set, until the end of the test.
func (c *Cluster) FakeClock(t testing.TB) *Clock {
	t.Helper()
	if c.instance.Local == nil {
		t.Fatalf("the clock of a server in a container cannot be set: install PostgreSQL on this machine, and set %s=local", envFrom)
	}
	library := ""
	for _, glob := range faketimeGlobs {
		if found, _ := filepath.Glob(glob); len(found) > 0 { // only a malformed pattern is an error
			library = found[0]
		}
	}
	if library == "" {
		t.Fatalf("libfaketime is missing, with which the server's clock is set: apt-get install libfaketime")
	}
	clock := &Clock{file: filepath.Join(c.instance.Dir, "clock")}
	clock.Set(t, 0)
	own := slices.Clip(c.instance.Local.Environment)
	c.Stop(t)
	// Read anew each time, and no memory is shared: a crashed process would leave it locked.
	c.instance.Local.Environment = append(own, "LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+clock.file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1", "FAKETIME_DISABLE_SHM=1")
	c.Start(t)
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t) // the test's own is over
		defer cancel()
		local := c.instance.Local
		local.Environment = own
		if local.Alive(ctx) != nil {
			return
		}
		if err := errors.Join(local.Stop(ctx, pgserver.Fast), c.instance.start(ctx)); err != nil {
			t.Errorf("give the server its clock back: %v", err)
		}
	})
	return clock
}

// Set has the clock be wrong by this from now on.
func (c *Clock) Set(t testing.TB, by time.Duration) {
	t.Helper()
	// Renamed into place: it is read all the time.
	draft := c.file + ".draft"
	err := os.WriteFile(draft, fmt.Appendf(nil, "%+d\n", int(by.Seconds())), 0o644) //nolint:gosec // the server's user reads it
	if err == nil {
		err = os.Rename(draft, c.file)
	}
	if err != nil {
		t.Fatalf("set the server's clock: %v", err)
	}
}
