package apply

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/pgreconciler/reconciler/internal/throttle"
)

// memoryObjects is how many objects the owners of one process remember together; that takes some 8 MB.
const memoryObjects = 1 << 18

// Memory is what the owners of a process remember: together, of long batches, within a bound, and for the next owner of a target,
// how many objects a read of its rows takes.
type Memory struct {
	left  atomic.Int64
	reads sync.Map // by target
}

// NewMemory returns room for 262,144 objects.
func NewMemory() *Memory {
	m := &Memory{}
	m.left.Store(memoryObjects)
	return m
}

// readsOf returns how many objects the next read for a target takes.
func (m *Memory) readsOf(target string) int {
	if n, ok := m.reads.Load(target); ok {
		return n.(int) //nolint:forcetypeassert // of setReads
	}
	return throttle.WindowMost
}

func (m *Memory) setReads(target string, n int) { m.reads.Store(target, n) }

// take says whether there is room for another object, and takes it.
func (m *Memory) take() bool {
	if m.left.Add(-1) >= 0 {
		return true
	}
	m.left.Add(1)
	return false
}

// brought are the objects that the pages of a long batch have brought so far, as far as there is room for them. One that comes
// again needs nothing more: everything in a batch was committed before its first page was read, so that who looked at the
// object then has seen all of it. Of each is kept half of its SHA-256, which takes less than a key and stands for no other.
type brought struct {
	memory *Memory
	sums   map[[16]byte]struct{}
	text   []byte // what the last sum was made of
}

// again reports whether an object was brought before. From now on it was.
func (b *brought) again(id ObjectID) bool {
	b.text = binary.BigEndian.AppendUint32(b.text[:0], uint32(id.ResourceID))
	b.text = append(b.text, id.Key...)
	whole := sha256.Sum256(b.text)
	sum := [16]byte(whole[:])
	if _, ok := b.sums[sum]; ok {
		return true
	}
	if b.memory.take() {
		if b.sums == nil {
			b.sums = map[[16]byte]struct{}{}
		}
		b.sums[sum] = struct{}{}
	}
	return false
}

// forget is for the end of a batch.
func (b *brought) forget() {
	b.memory.left.Add(int64(len(b.sums)))
	b.sums = nil
}
