package client

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/bbolt"
)

// WatchPatiently is Watch with another silenceMost.
func (c *Client) WatchPatiently(ctx context.Context, target string, silence time.Duration, yield func(Frame) bool) error {
	w := &watch{client: c, target: target, silence: silence, yield: func(f Frame, _ error) bool { return yield(f) }}
	if err := w.run(ctx); !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// Values returns how many values the index has.
func (x *Index[T]) Values() int { return len(x.index.keys) }

// Take has an informer take a frame, without a server. The first one begins a snapshot.
func (i *Informer) Take(ctx context.Context, f Frame) {
	if !i.begun {
		_ = i.begin()
		i.restart(resetCut)
	}
	i.take(ctx, f)
}

// Has reports whether the file has an object or its delete.
func (s *Store) Has(r Ref) (found bool) {
	_ = s.db.View(func(tx *bbolt.Tx) error {
		objects := tx.Bucket(bucketObjects)
		if objects == nil {
			return nil
		}
		rec, err := decodeRecord(objects.Get([]byte(r.Resource + "\x00" + r.Key)))
		found = err == nil && (rec.spec != "" || rec.gone != nil)
		return nil
	})
	return found
}

// CopyTo writes what the file has into another one, as a crash would leave it.
func (s *Store) CopyTo(path string) error {
	return s.db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(path, 0o600) })
}

// Transactions returns how many have been written.
func (s *Store) Transactions() (n int) {
	_ = s.db.View(func(tx *bbolt.Tx) error {
		n = tx.ID()
		return nil
	})
	return n
}

// SaveWhile writes the store of an informer that does not run, and calls a function before the end of the transaction.
func (i *Informer) SaveWhile(during func()) error {
	h, records := i.unsaved()
	during()
	return i.saved(records, i.opts.Store.save(h, records))
}
