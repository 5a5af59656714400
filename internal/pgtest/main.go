package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// leakTimeout is for how long goroutines that were told to end may take on a busy machine.
const leakTimeout = 30 * time.Second

// TestedOn begins the line that Main prints for each shared server that the tests used. The version comes after it, as the server
// shows it. scripts/testreport collects these lines.
const TestedOn = "tested on PostgreSQL "

// Main runs the tests of a package, gives up its shares of the servers and looks for goroutines that were left behind. What it
// returns is for os.Exit:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m *testing.M) int {
	code := m.Run()
	drops.pending.Wait()
	quiet.printVersion()
	holding.printVersion()
	leave()
	if code != 0 {
		return code
	}
	if leaked := leaks(leakTimeout); leaked != nil {
		fmt.Fprintf(os.Stderr, "VIOLATION: goroutines leaked after the tests of this package\n%v\n", leaked)
		return 1
	}
	return 0
}

// leaks returns an error if goroutines are left after d.
func leaks(d time.Duration) error {
	for end := time.Now().Add(d); ; {
		if err := goleak.Find(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// drops removes the databases of tests that have ended, one at a time: each DROP DATABASE makes a checkpoint.
var drops dropper

type dropper struct {
	mu      sync.Mutex // held for each drop
	pending sync.WaitGroup
}

func (d *dropper) add(server *instance, name string) {
	d.pending.Go(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		// Left to the end of the server if that fails. The test has passed, or said why not.
		if err := server.dropDatabase(ctx, name); err != nil {
			fmt.Fprintf(os.Stderr, "drop database %s: %v\n", name, err)
		}
	})
}
