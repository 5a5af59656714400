package streamtest

import (
	"context"
	"time"

	"github.com/pgreconciler/reconciler/client"
)

// snapshot sends every object, those that are only kept, what has changed since it began, and the end.
func (w *watcher) snapshot(ctx context.Context) error {
	s := w.server
	s.mu.Lock()
	if !w.at.Paging || w.at.Epoch != s.epoch {
		w.at = bookmark{Epoch: s.epoch, Version: s.version, Scope: w.query.scope(), Paging: true}
	}
	all := ids(w, s.objects)
	s.mu.Unlock()
	rows := 0
	for _, at := range all {
		if compare(at, id{w.at.At[0], w.at.At[1]}) <= 0 {
			continue
		}
		if err := w.pass(ctx, at.resource); err != nil {
			return err
		}
		if err := w.named(at); err != nil {
			return err
		}
		w.at.At = [2]string{at.resource, at.key}
		if rows++; rows%pageRows == 0 {
			if err := w.checkpoint(client.Checkpoint); err != nil {
				return err
			}
		}
	}
	if err := w.keeps(); err != nil {
		return err
	}
	w.at.Paging, w.at.At = false, [2]string{}
	if _, err := w.newer(); err != nil {
		return err
	}
	if _, reset := w.look(); reset != "" {
		return nil // of which the caller finds out
	}
	return w.checkpoint(client.EndOfSnapshot)
}

// named sends an object as it is now.
func (w *watcher) named(at id) error {
	w.server.mu.Lock()
	o := w.server.objects[at]
	w.server.mu.Unlock()
	if o == nil || o.spec == nil {
		return nil
	}
	return w.send(o.frame())
}

func (w *watcher) keeps() error {
	w.server.mu.Lock()
	reasons := map[id]string{}
	for _, at := range ids(w, w.server.keeps) {
		reasons[at] = w.server.keeps[at]
	}
	w.server.mu.Unlock()
	for at, reason := range reasons {
		f := client.Frame{Type: client.Keep, Object: client.Object{Resource: at.resource, Key: at.key}, Reason: reason}
		if err := w.send(f); err != nil {
			return err
		}
	}
	return nil
}

// pass waits while snapshots are held at a resource.
func (w *watcher) pass(ctx context.Context, resource string) error {
	for {
		w.server.mu.Lock()
		held, changed := w.server.heldAt == resource, w.server.changed
		w.server.mu.Unlock()
		if !held {
			return nil
		}
		idle := time.NewTimer(checkpointEvery)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-idle.C:
			if err := w.send(client.Frame{Type: client.Waiting, Reason: "queue"}); err != nil {
				return err
			}
		}
		idle.Stop()
		if err := w.alive(); err != nil {
			return err
		}
	}
}
