package client

import (
	"context"
	"fmt"
	"maps"
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
	if err != nil {
		return err
	}
	i.mu.Lock()
	i.epoch = max(i.epoch, h.Epoch)
	if !maps.Equal(h.Results, i.fingerprints()) {
		i.epoch++
		i.cache.forgetResults()
	}
	i.mu.Unlock()
	if h.Bookmark == "" {
		return nil // a new store, or one after Adopt
	}
	if err := i.client.expect(h.Installation); err != nil {
		return fmt.Errorf("store %s: %w", store.path, err)
	}
	i.mu.Lock()
	i.snapshot, i.primed, i.bookmark, i.status.Revision = false, true, h.Bookmark, h.Revision
	i.mu.Unlock()
	i.obey(h.Controls)
	i.prime()
	return nil
}

// fingerprints returns those of RememberResults, by resource.
func (i *Informer) fingerprints() map[string]string {
	all := map[string]string{}
	for resource, c := range i.controllers {
		if c.remember {
			all[resource] = c.results
		}
	}
	return all
}

// restore takes over a record of the store.
func (i *Informer) restore(r Ref, rec record) {
	rec.round = i.cache.round
	r.Resource = i.intern(r.Resource)
	i.change(r, entry{}, rec.entry, rec.gone)
	i.mu.Lock()
	defer i.mu.Unlock()
	if rec.kept {
		i.kept[r] = struct{}{}
	}
	clear(i.dirty)
}

// noteDirty has the saver write an object. With WriteAhead a handler may have to wait for that. It needs mu.
func (i *Informer) noteDirty(r Ref, waits bool) {
	if i.opts.Store != nil {
		i.dirty[r] = i.dirty[r] || waits && i.opts.WriteAhead
	}
}

// unwritten reports whether handlers wait until the store has an object. It needs mu.
func (i *Informer) unwritten(r Ref) bool { return i.dirty[r] || i.writing[r] }

// wakeSaver has the store written soon, or at once if handlers may wait for that.
func (i *Informer) wakeSaver(waits bool) {
	wake(i.kick)
	if waits && i.opts.WriteAhead {
		wake(i.hurry)
	}
}

// wake sends to a channel of size one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
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
		select {
		case <-i.hurry: // this time has what came before it
		default:
		}
		err := i.saveNow()
		i.mu.Lock()
		i.status.Err = err
		i.mu.Unlock()
		hurry := i.hurry
		if err != nil {
			if !failing {
				i.client.log.Error("store_not_written", "target", i.target, "error", err.Error())
			}
			wake(i.kick)
			hurry = nil
		}
		failing = err != nil
		rest := time.NewTimer(saveEvery)
		select {
		case <-ctx.Done():
		case <-rest.C:
		case <-hurry:
		}
		rest.Stop()
	}
}

// saveNow writes what the store does not have, and has controllers look at what waited for that. While a snapshot is under way it writes
// nothing: the store is complete at any time.
func (i *Informer) saveNow() error {
	h, records := i.unsaved()
	if h.Bookmark == "" {
		return nil
	}
	return i.saved(records, i.opts.Store.save(h, records))
}

// unsaved returns what the store does not have.
func (i *Informer) unsaved() (h head, records map[Ref]record) {
	i.client.mu.Lock()
	installation := i.client.installation
	i.client.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.bookmark == "" {
		return h, nil
	}
	records = make(map[Ref]record, len(i.dirty))
	for r := range i.dirty {
		records[r] = i.recordOf(r)
	}
	i.writing, i.dirty = i.dirty, map[Ref]bool{}
	return head{
		Format: storeFormat, Installation: installation, Target: i.target, Resources: i.opts.Resources, Prefix: i.opts.Prefix,
		Bookmark: i.bookmark, Revision: i.status.Revision, Controls: i.controls, Results: i.fingerprints(), Epoch: i.epoch,
	}, records
}

// saved takes over whether the store has that now, and has controllers look at what waited for it. An object that has changed again is
// handled as it was written: one that changes all the time would never be handled otherwise.
func (i *Informer) saved(records map[Ref]record, err error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for r, waits := range i.writing {
		switch {
		case err != nil:
			i.dirty[r] = i.dirty[r] || waits
			continue
		case i.dirty[r]:
			i.written[r] = written{entry: records[r].entry, due: true}
		default:
			delete(i.written, r)
		}
		if c := i.controller(r.Resource); c != nil && waits {
			c.queue.add(r)
		}
	}
	i.writing = nil
	return err
}

// recordOf returns what the store must have of an object. It needs mu.
func (i *Informer) recordOf(r Ref) (rec record) {
	rec.entry = i.cache.get(r)
	_, rec.kept = i.kept[r]
	if t, ok := i.tombstones[r]; ok {
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
