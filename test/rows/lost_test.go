package rows_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// failed is a test that has failed, and keeps what it logs.
type failed struct {
	testing.TB

	cleanups []func()
	mu       sync.Mutex
	logged   strings.Builder
}

func (*failed) Failed() bool { return true }

func (f *failed) Cleanup(fn func()) { f.cleanups = append(f.cleanups, fn) }

func (f *failed) Logf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.logged, format+"\n", args...)
}

// end runs what was to be cleaned up.
func (f *failed) end() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

// A test that fails reports a change that was lost, which keeps it from being run again, and nothing else.
func TestFailedTestReportsLostChanges(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		change func(w *servertest.World, eu *servertest.Place)
		lost   bool
	}{
		"Lost": {func(w *servertest.World, _ *servertest.Place) {
			w.DB.Exec(w.T, `ALTER TABLE apps DISABLE TRIGGER USER; UPDATE apps SET image = 'new' WHERE id = 1`)
		}, true},
		"ToBeSynced": {func(w *servertest.World, _ *servertest.Place) {
			w.DB.Exec(w.T, `INSERT INTO reconciler.sync_runs (target_id, reason, state) SELECT id, 'retention', 'running' FROM reconciler.targets`)
			w.DB.Exec(w.T, `ALTER TABLE apps DISABLE TRIGGER USER; UPDATE apps SET image = 'new' WHERE id = 1`)
		}, false},
		"Silent": {func(w *servertest.World, _ *servertest.Place) {
			w.Silently(`UPDATE apps SET image = 'new' WHERE id = 1`)
		}, false},
		"Drifted": {func(_ *servertest.World, eu *servertest.Place) { eu.Put("app/1", `"foreign"`) }, false},
		"Applied": {func(*servertest.World, *servertest.Place) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &failed{TB: t}
			func() {
				defer f.end()
				w, want := servertest.Fleet(f, 5)
				eu := servertest.NewPlace()
				w.Start(servertest.Named("eu", eu))
				eu.Eventually(f, want)
				w.Wait()
				one.change(w, eu)
			}()
			require.Equal(t, one.lost, strings.Contains(f.logged.String(), servertest.Violation+"app/1 counts as applied"), f.logged.String())
		})
	}
}
