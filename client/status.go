package client

import (
	"context"
	"time"
)

// Status is how an Informer stands.
type Status struct {
	Synced    bool      // the objects were complete once
	Revision  int64     // every change up to it is in the objects; 0: none yet, or a snapshot is under way
	LastFrame time.Time // when the server sent something last, or an attempt to reach it failed; zero: not yet
	Objects   int       // how many there are
	Waiting   string    // what the informer waits for, such as an error of the connection; "": nothing
	Err       error     // why Run has ended, or why the store could not be written
}

// Synced returns a channel that is closed when the objects are complete for the first time: at the end of a snapshot, or when a
// store has brought them.
func (i *Informer) Synced() <-chan struct{} { return i.synced }

// Status returns how the informer stands.
func (i *Informer) Status() Status {
	i.mu.RLock()
	defer i.mu.RUnlock()
	s := i.status
	s.Synced, s.Objects = i.primed, i.cache.count
	return s
}

// WaitFor returns once every change up to a revision is in the objects, or is held, blocked or failing in the database. With the
// revision of reconciler.wait or of a write it lets you read your writes. It returns an error when ctx or Run ends.
func (i *Informer) WaitFor(ctx context.Context, revision int64) error {
	for {
		i.mu.RLock()
		reached, primed, turned, ended := i.status.Revision, i.primed, i.turned, i.ended
		i.mu.RUnlock()
		switch {
		case primed && reached >= revision:
			return nil
		case ended != nil:
			return ended
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-turned:
		}
	}
}

// turn wakes those that wait for a revision. It needs mu.
func (i *Informer) turn() {
	close(i.turned)
	i.turned = make(chan struct{})
}
