package agent

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
)

// unapprovedAgain is when an object is looked at again that waits for approval; an approval and a change come earlier.
const unapprovedAgain = time.Hour

var bucketApprovals = []byte("approvals") // keys as in bucketMemories; 'a' or 'd' for what is wanted, 'y' or 'n', and the hash

// approvals are the objects whose last call returned Unapproved, and whether it is approved now. They are kept in the file of the memories.
type approvals struct {
	file *memories

	mu   sync.Mutex // guards open
	open map[client.Ref]approval
}

// approval is about one call: it counts for no other spec.
type approval struct {
	wanted   bool
	hash     driver.Hash
	approved bool
	reason   string // "": a former process has asked, and the driver may answer otherwise now
}

func (a approval) is(wanted bool, hash driver.Hash) bool { return a.wanted == wanted && a.hash == hash }

// openState opens the file of the memories and the approvals.
func openState(path string) (*memories, *approvals, error) {
	memory, err := openMemories(path)
	if err != nil {
		return nil, nil, err
	}
	asked, err := openApprovals(memory)
	if err != nil {
		memory.close()
		return nil, nil, err
	}
	return memory, asked, nil
}

// openApprovals reads what former processes have left.
func openApprovals(file *memories) (*approvals, error) {
	a := &approvals{file: file, open: map[client.Ref]approval{}}
	if file.db == nil {
		return a, nil
	}
	err := file.db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketApprovals)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(key, value []byte) error {
			resource, name, _ := strings.Cut(string(key), "\x00")
			if len(value) != 2+len(driver.Hash{}) {
				return fmt.Errorf("the approval of %s %s cannot be read", resource, name)
			}
			a.open[client.Ref{Resource: resource, Key: name}] = approval{wanted: value[0] == 'a', approved: value[1] == 'y', hash: driver.Hash(value[2:])}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("memory %s: %w", file.path, err)
	}
	return a, nil
}

// waits returns why a call is not made: the driver has asked for an approval that has not come. "": it is made.
func (a *approvals) waits(at client.Ref, wanted bool, hash driver.Hash) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.open[at]; now.is(wanted, hash) && !now.approved {
		return now.reason
	}
	return ""
}

func (a *approvals) approved(at client.Ref, wanted bool, hash driver.Hash) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.open[at]
	return now.approved && now.is(wanted, hash)
}

// settle notes the outcome of a call. It returns the outcome, which counts only then: if the file cannot be written, the call is a failed
// attempt.
func (a *approvals) settle(at client.Ref, wanted bool, hash driver.Hash, out driver.Outcome) driver.Outcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, is := a.open[at]
	asks := out.Verdict == driver.VerdictUnapproved
	if !asks && (!is || now.is(wanted, hash) && out.Verdict != driver.VerdictDone) {
		return out
	}
	changed := map[client.Ref]approval{}
	if asks {
		changed[at] = approval{wanted: wanted, hash: hash, reason: short(out.Err)}
	}
	if err := a.write(changed, at); err != nil {
		return driver.Backoff(err).Remember(out.Memory)
	}
	if delete(a.open, at); asks {
		a.open[at] = changed[at]
	}
	return out
}

// held returns how many calls wait.
func (a *approvals) held() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, now := range a.open {
		if !now.approved {
			n++
		}
	}
	return n
}

// approve lets the calls that wait pass, and returns their objects.
func (a *approvals) approve() ([]client.Ref, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed, refs := map[client.Ref]approval{}, []client.Ref(nil)
	for at, now := range a.open {
		if !now.approved {
			now.approved = true
			changed[at] = now
			refs = append(refs, at)
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	if err := a.write(changed); err != nil {
		return nil, err
	}
	for at, now := range changed {
		a.open[at] = now
	}
	return refs, nil
}

// write changes the file: what is gone goes first.
func (a *approvals) write(changed map[client.Ref]approval, gone ...client.Ref) error {
	db, err := a.file.file()
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		bucket, err := tx.CreateBucketIfNotExists(bucketApprovals)
		for _, at := range gone {
			if err == nil {
				err = bucket.Delete(memoryKey(at))
			}
		}
		for at, now := range changed {
			if err == nil {
				err = bucket.Put(memoryKey(at), now.encode())
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("memory %s: %w", a.file.path, err)
	}
	return nil
}

func (a approval) encode() []byte {
	value := []byte("dn")
	if a.wanted {
		value[0] = 'a'
	}
	if a.approved {
		value[1] = 'y'
	}
	return append(value, a.hash[:]...)
}
