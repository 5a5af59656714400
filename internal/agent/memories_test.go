package agent

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// keeper is a far side whose driver keeps a memory of each object: what remembers returns.
type keeper struct {
	*farSide

	remembers func(spec string) []byte // nil: the spec
	lists     func(spec string) []byte // nil: the spec
}

func (k *keeper) Apply(ctx context.Context, o driver.Object) driver.Outcome {
	out := k.farSide.Apply(ctx, o)
	if k.remembers != nil {
		return out.Remember(k.remembers(string(o.Spec)))
	}
	return out.Remember(o.Spec)
}

func (k *keeper) List(ctx context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	return func(yield func(driver.Listed, error) bool) {
		for one, err := range k.farSide.List(ctx, resources) {
			k.mu.Lock()
			spec := k.objects[client.Ref{Resource: one.Resource, Key: one.Key}]
			one.Hashes, one.Memory = []driver.Hash{{1}}, []byte(spec)
			if k.lists != nil {
				one.Memory = k.lists(spec)
			}
			k.mu.Unlock()
			if !yield(one, err) {
				return
			}
		}
	}
}

// handed returns what each call since the last time had remembered, in order.
func (k *keeper) handed() (memories []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range k.calls {
		memory := "nothing"
		if o.Memory != nil {
			memory = string(o.Memory)
		}
		memories = append(memories, memory)
	}
	k.calls = nil
	return memories
}

func newKeeperBed(t *testing.T) (*bed, *keeper) {
	t.Helper()
	b := newBed(t)
	k := &keeper{farSide: b.far}
	b.drv = k
	return b, k
}

func TestMemoryComesBackUntilTheObjectIsDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, k := newKeeperBed(t)
		b.lines = "  backoff: {min: 1s, max: 1s}\n  sync_interval: off\n"
		b.far.outcomes["web"] = backoff("half done")
		b.Set("app", "web", spec(1))
		r := b.start(t)
		after(1500 * time.Millisecond)
		require.Equal(t, []string{"nothing", `{"n":1}`}, k.handed()[:2], "a failed attempt leaves its own")
		require.NoError(t, r.stop())

		b.far.change(func() { clear(b.far.outcomes) })
		r = b.start(t)
		after(time.Second)
		require.Equal(t, []string{`{"n":1}`}, k.handed())
		k.change(func() { k.remembers = func(string) []byte { return nil } })
		b.Set("app", "web", spec(2))
		b.Set("app", "other", spec(2))
		after(time.Second)
		b.Set("app", "web", spec(3))
		after(time.Second)
		require.ElementsMatch(t, []string{"nothing", `{"n":1}`, `{"n":1}`}, k.handed(), "without another one it stays")

		b.Delete("app", "web")
		after(time.Second)
		b.Set("app", "web", spec(4))
		after(time.Second)
		require.Equal(t, []string{`{"n":1}`, "nothing"}, k.handed())
		require.NoError(t, r.stop())
	})
}

func TestSyncComparesMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, k := newKeeperBed(t)
		b.lines = "  sync_interval: 1m\n"
		b.Set("app", "a", spec(1))
		b.Set("app", "b", spec(2))
		r := b.start(t)
		after(5 * time.Minute)
		require.Len(t, k.handed(), 2, "what is listed as it was remembered is not called for")
		k.change(func() {
			k.lists = func(spec string) []byte { // at the next sync only
				if strings.Contains(spec, "2") {
					k.lists = nil
					return []byte("another")
				}
				return []byte(spec)
			}
		})
		after(5 * time.Minute)
		require.Equal(t, []string{`{"n":2}`}, k.handed())
		require.NoError(t, r.stop())
		require.NoError(t, os.Remove(b.dir+"/state/eu.memory"))
		r = b.start(t)
		after(5 * time.Minute)
		require.Equal(t, []string{"nothing", "nothing"}, k.handed(), "what is listed and not remembered is different")
		require.NoError(t, r.stop())
	})
}

func TestMemoryThatCannotBeKeptIsAFailure(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		size    int
		prepare func(t *testing.T, dir string)
		message string // of the report
	}{
		"TooLarge": {driver.MemoryMost + 1, func(*testing.T, string) {}, "the driver is to remember 65537 bytes for the object, and the most is 65536"},
		"NotWritten": {driver.MemoryMost, func(t *testing.T, dir string) {
			t.Helper()
			require.NoError(t, os.Symlink(dir+"/no/such", dir+"/state/eu.memory"))
		}, "memory %s/state/eu.memory: open %[1]s/state/eu.memory: no such file or directory"},
		"LargestIsOne": {driver.MemoryMost, func(*testing.T, string) {}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, k := newKeeperBed(t)
				k.remembers = func(string) []byte { return make([]byte, tc.size) }
				require.NoError(t, b.start(t).stop())
				tc.prepare(t, b.dir)
				b.Set("app", "web", spec(1))
				b.start(t)
				after(10 * time.Second)
				want := client.StateApplied
				if tc.message != "" {
					want = client.StateFailed
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				o, err := b.WaitObserved(ctx, "app", "web", want)
				require.NoError(t, err)
				if strings.Contains(tc.message, "%") {
					tc.message = fmt.Sprintf(tc.message, b.dir)
				}
				require.Equal(t, tc.message, o.Message)
			})
		})
	}
}

// killedIn names the directory of the process that TestMemoryOutlivesAKill kills; unset in others.
const killedIn = "AGENT_TEST_KILLED_IN"

// What a call has had remembered is there after kill -9, before its result is.
func TestMemoryOutlivesAKill(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv(killedIn); dir != "" {
		b, k := newKeeperBed(t)
		b.dir, b.lines = dir, "  backoff: {min: 10ms, max: 10ms}\n"
		b.far.outcomes["web"] = backoff("half done")
		b.Set("app", "web", spec(1))
		calls := 0
		k.remembers = func(string) []byte {
			if calls++; calls == 2 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			return []byte("half")
		}
		require.NoError(t, b.load(t, false).Run(t.Context()))
		return
	}
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMemoryOutlivesAKill$")
	child.Env = append(os.Environ(), killedIn+"="+dir)
	output, err := child.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", output)
	require.True(t, exit.Sys().(syscall.WaitStatus).Signaled(), "%s", output) //nolint:forcetypeassert // on every Unix
	synctest.Test(t, func(t *testing.T) {
		b, k := newKeeperBed(t)
		b.dir = dir
		b.Set("app", "web", spec(1))
		b.start(t)
		after(time.Minute)
		require.Equal(t, []string{"half"}, k.handed())
	})
}
