package rows_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// keeper is a place whose driver keeps a memory of each object: what remembers returns, or else its spec.
type keeper struct {
	*servertest.Place

	mu        sync.Mutex                                      // guards what follows
	remembers func(driver.Ref, driver.Outcome) driver.Outcome // nil: the spec
	handed    []string                                        // by each call: action, key and memory
	lists     func(key, spec string) (memory []byte)          // nil: the spec
}

func (k *keeper) Apply(ctx context.Context, obj driver.Object) driver.Outcome {
	return k.note("apply", obj.Ref, k.Place.Apply(ctx, obj).Remember(obj.Spec))
}

func (k *keeper) Delete(ctx context.Context, ref driver.Ref) driver.Outcome {
	return k.note("delete", ref, k.Place.Delete(ctx, ref))
}

func (k *keeper) note(action string, ref driver.Ref, out driver.Outcome) driver.Outcome {
	k.mu.Lock()
	defer k.mu.Unlock()
	memory := "nothing"
	if ref.Memory != nil {
		memory = string(ref.Memory)
	}
	k.handed = append(k.handed, fmt.Sprintf("%s %s %s", action, ref.Key, memory))
	if k.remembers != nil {
		return k.remembers(ref, out)
	}
	return out
}

func (k *keeper) List(_ context.Context, resources []string) iter.Seq2[driver.Listed, error] {
	objects, _, _ := k.Snapshot()
	k.mu.Lock()
	defer k.mu.Unlock()
	lists := k.lists
	return func(yield func(driver.Listed, error) bool) {
		for id, spec := range objects {
			name, key, ok := servertest.Cut(id)
			one := driver.Listed{Resource: name, Key: key, Hashes: []driver.Hash{{1}}, Memory: []byte(spec)}
			if lists != nil {
				one.Memory = lists(key, spec)
			}
			if ok && slices.Contains(resources, name) && !yield(one, nil) {
				return
			}
		}
	}
}

// remember has calls end otherwise from now on.
func (k *keeper) remember(fn func(driver.Ref, driver.Outcome) driver.Outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remembers = fn
}

// ends has every call end in the same way.
func (k *keeper) ends(out driver.Outcome) {
	k.remember(func(driver.Ref, driver.Outcome) driver.Outcome { return out })
}

// was returns the calls since the last time.
func (k *keeper) was() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	handed := k.handed
	k.handed = nil
	return handed
}

const memory = `SELECT concat_ws(' ', state, 'attempts=' || attempts, encode(memory, 'escape')) FROM reconciler.ledger`

var refused = errors.New("refused")

// What a driver has remembered comes back with each later call, also of another owner, until the object is deleted.
func TestMemoryComesBackUntilTheObjectIsDeleted(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	eu := &keeper{Place: servertest.NewPlace()}
	eu.ends(driver.RetryAfter(time.Hour, refused).Remember([]byte("half")))
	// Without a listing: no sync calls for what it takes to have changed.
	p := w.Start(servertest.Named("eu", struct{ driver.Driver }{eu}))
	w.Settled("complete", `SELECT state FROM reconciler.sync_runs`) // one that is cut off is made good by the next owner, and calls
	w.Settled("failing attempts=1 half", memory)
	require.Equal(t, []string{"apply 1 nothing"}, eu.was())

	retry := func(want string) {
		w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
		w.Settled(want, memory)
	}
	eu.ends(driver.RetryAfter(time.Hour, refused))
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	w.Eventually("another call", func() bool { return len(eu.was()) > 0 })
	require.Equal(t, "half", w.Text(`SELECT encode(memory, 'escape') FROM reconciler.ledger`), "an attempt without a memory keeps it")
	eu.ends(driver.Waiting(time.Hour, "not yet").Remember([]byte("more")))
	retry("pending attempts=0 more")
	require.Equal(t, []string{"apply 1 half"}, eu.was())

	p.Stop(t)
	w.DB.Exec(t, `SELECT reconciler.pause('eu')`)
	p = w.Start(servertest.Named("eu", struct{ driver.Driver }{eu}))
	w.Settled("held attempts=0 more", memory)
	eu.ends(driver.Done())
	w.DB.Exec(t, `SELECT reconciler.resume('eu')`)
	w.Settled("applied attempts=0 more", memory)
	require.Equal(t, []string{"apply 1 more"}, eu.was(), "the next owner has it")
	eu.remember(nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'v3'`)
	w.Settled(`applied attempts=0 "v3"`, memory)
	require.Equal(t, []string{"apply 1 more"}, eu.was())

	eu.ends(driver.RetryAfter(time.Hour, refused).Remember([]byte("half gone")))
	w.DB.Exec(t, `DELETE FROM apps`)
	w.Settled("failing attempts=1 half gone", memory)
	eu.ends(driver.Done())
	retry("")
	require.Equal(t, []string{`delete 1 "v3"`, "delete 1 half gone"}, eu.was())

	w.DB.Exec(t, `INSERT INTO apps VALUES (1, 'eu', 'v4')`)
	w.Settled("applied attempts=0", memory)
	require.Equal(t, []string{"apply 1 nothing"}, eu.was())
	p.Stop(t)
}

// A call that ends after retry() leaves its memory.
func TestMemoryOfACallFromBeforeRetryIsKept(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	eu := &keeper{Place: servertest.NewPlace()}
	eu.ends(driver.RetryAfter(time.Hour, refused).Remember([]byte("half")))
	w.Start(servertest.Named("eu", eu))
	w.Settled("failing attempts=1 half", memory)
	begun, end := make(chan struct{}), make(chan struct{})
	eu.Set(func(context.Context, servertest.Call) driver.Outcome {
		begun <- struct{}{}
		<-end
		return driver.Done()
	})
	eu.remember(nil)
	w.DB.Exec(t, `UPDATE apps SET image = 'v2'`)
	<-begun
	w.DB.Exec(t, `SELECT reconciler.retry('eu')`)
	eu.Set(nil)
	close(end)
	w.Settled(`applied attempts=0 "v2"`, memory)
	require.Equal(t, []string{"apply 1 nothing", "apply 1 half"}, eu.was())
}

// A memory that the ledger cannot hold blocks its object, and no other.
func TestMemoryThatIsTooLargeBlocksItsObject(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 2)
	eu := &keeper{Place: servertest.NewPlace()}
	eu.remember(func(ref driver.Ref, out driver.Outcome) driver.Outcome {
		size := driver.MemoryMost
		if ref.Key == "2" {
			size++
		}
		return out.Remember([]byte(strings.Repeat("x", size)))
	})
	w.Start(servertest.Named("eu", eu))
	w.Settled("1 applied 65536, 2 blocked the driver is to remember 65537 bytes for the object, and the most is 65536",
		`SELECT string_agg(concat_ws(' ', key, state, octet_length(memory), last_error), ', ' ORDER BY key) FROM reconciler.ledger`)
}

// What a driver has done before its target ceased to answer is remembered. The target's silence fails no object.
func TestMemoryOfACallThatFoundTheTargetGone(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 1)
	eu := &keeper{Place: servertest.NewPlace()}
	eu.ends(driver.Unreachable(refused).Remember([]byte("half")))
	w.Start(servertest.Named("eu", eu))
	w.Settled("pending attempts=0 half", memory)
	require.Equal(t, "apply 1 nothing", eu.was()[0])
	eu.remember(nil)
	w.Settled(`applied attempts=0 "v1"`, memory)
	require.Equal(t, "apply 1 half", eu.was()[0])
}

// A sync compares what a driver lists with what it has had remembered, and calls for what differs.
func TestSyncComparesMemory(t *testing.T) {
	t.Parallel()
	w, _ := servertest.Fleet(t, 3)
	eu := &keeper{Place: servertest.NewPlace()}
	w.Start(servertest.Named("eu", eu))
	w.Settled("3", `SELECT count(*)::text FROM reconciler.ledger WHERE state = 'applied'`)
	w.Resync("complete resync rows=3 upserts=0 tombstones=0 drifted=0 held=0")
	require.Len(t, eu.was(), 3)

	eu.mu.Lock()
	eu.lists = func(key, spec string) []byte {
		if key == "2" {
			return []byte("another")
		}
		return []byte(spec)
	}
	eu.mu.Unlock()
	w.Resync("complete resync rows=3 upserts=0 tombstones=0 drifted=1 held=0")
	require.Equal(t, []string{`apply 2 "v1"`}, eu.was())
	eu.mu.Lock()
	eu.lists = nil
	eu.mu.Unlock()
	w.DB.Exec(t, `UPDATE reconciler.ledger SET memory = NULL WHERE key = '3'`)
	w.Resync("complete resync rows=3 upserts=0 tombstones=0 drifted=1 held=0")
	require.Equal(t, []string{"apply 3 nothing"}, eu.was())
	w.Resync("complete resync rows=3 upserts=0 tombstones=0 drifted=0 held=0")
	require.Empty(t, eu.was())
}
