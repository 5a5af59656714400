package client

import (
	"context"
	"fmt"
	"time"
)

// saveEvery is how far apart the transactions of a store are.
const saveEvery = time.Second

// load takes over what the store has. A store that has something is complete.
func (i *Informer) load() error {
	store := i.opts.Store
	if store.used.Swap(true) {
		return fmt.Errorf("store %s: another informer uses it", store.path)
	}
	want := head{Target: i.target, Resources: i.opts.Resources, Prefix: i.opts.Prefix}
	h, err := store.load(want, i.restore)
	if err != nil || h.Bookmark == "" {
		return err
	}
	if err := i.client.expect(h.Installation); err != nil {
		return fmt.Errorf("store %s: %w", store.path, err)
	}
	i.mu.Lock()
	i.snapshot, i.primed, i.bookmark, i.status.Revision = false, true, h.Bookmark, h.Revision
	i.mu.Unlock()
	i.prime()
	return nil
}

// restore takes over a record of the store.
func (i *Informer) restore(r ref, rec record) {
	rec.round = i.cache.round
	r.resource = i.intern(r.resource)
	i.change(r, entry{}, rec.entry, rec.gone)
	i.mu.Lock()
	defer i.mu.Unlock()
	if rec.kept {
		i.kept[r] = struct{}{}
	}
	clear(i.dirty)
}

// wakeSaver has the store written soon.
func (i *Informer) wakeSaver() {
	select {
	case i.kick <- struct{}{}:
	default:
	}
}

// save writes what has changed until ctx ends, and then what is left.
func (i *Informer) save(ctx context.Context) error {
	for failing := false; ; {
		select {
		case <-ctx.Done():
			return i.saveNow()
		case <-i.kick:
		}
		err := i.saveNow()
		i.mu.Lock()
		i.status.Err = err
		i.mu.Unlock()
		if err != nil {
			if !failing {
				i.client.log.Error("store_not_written", "target", i.target, "error", err.Error())
			}
			i.wakeSaver()
		}
		failing = err != nil
		if !wait(ctx, saveEvery) {
			return i.saveNow()
		}
	}
}

// saveNow writes what the store does not have. While a snapshot is under way it writes nothing: the store is complete at any time.
func (i *Informer) saveNow() error {
	i.client.mu.Lock()
	installation := i.client.installation
	i.client.mu.Unlock()
	i.mu.Lock()
	if i.bookmark == "" {
		i.mu.Unlock()
		return nil
	}
	h := head{
		Format: storeFormat, Installation: installation, Target: i.target, Resources: i.opts.Resources, Prefix: i.opts.Prefix,
		Bookmark: i.bookmark, Revision: i.status.Revision,
	}
	records := make(map[ref]record, len(i.dirty))
	for r := range i.dirty {
		records[r] = i.recordOf(r)
	}
	i.dirty = map[ref]struct{}{}
	i.mu.Unlock()
	err := i.opts.Store.save(h, records)
	if err != nil {
		i.mu.Lock()
		defer i.mu.Unlock()
		for r := range records {
			i.dirty[r] = struct{}{}
		}
	}
	return err
}

// recordOf returns what the store must have of an object. It needs mu.
func (i *Informer) recordOf(r ref) (rec record) {
	rec.entry = i.cache.get(r)
	_, rec.kept = i.kept[r]
	if t, ok := i.tombstones[r.resource][r.key]; ok {
		rec.gone = &t
	}
	return rec
}

// expect has the client accept one installation only.
func (c *Client) expect(installation string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.installation != "" && c.installation != installation {
		return fmt.Errorf("%w: it has the objects of installation %s, and the server has been installation %s",
			ErrInstallation, installation, c.installation)
	}
	c.installation = installation
	return nil
}
