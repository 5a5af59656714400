package agent

import (
	"context"
	"errors"
	"time"

	"github.com/pgreconciler/reconciler/client"
	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/pace"
)

// listEvery is how far apart the listings are at least that a watch asks for.
var listEvery = pace.Of(time.Minute)

// watches looks again at what the driver names as changed, where it can, until ctx ends.
func (s *session) watches(ctx context.Context) {
	watched, can := s.drv.(driver.Watcher)
	if !can {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-s.informer.Synced(): // the installation is known
	}
	s.start(ctx)
	rechecking := make(chan struct{})
	go func() {
		defer close(rechecking)
		s.rechecksNamed(ctx)
	}()
	driver.KeepWatching(ctx, watched, s.named, s.noteWatch)
	<-rechecking
}

// named takes in what the driver names. It does not block.
func (s *session) named(resource, key string) {
	at := client.Ref{Resource: resource, Key: key}
	if s.controller.IsApplied(at) && !s.rechecks.Name(at) {
		signal(s.crowded)
	}
}

// noteWatch notes whether the watch works. One that fails once begins again, and is no trouble yet. A far side that was set back is listed.
func (s *session) noteWatch(err error) {
	if errors.Is(err, driver.ErrRestored) {
		signal(s.crowded)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	if err != nil {
		s.unwatched++
		s.log.Warn("watch_failed", "error", err, "failures", s.unwatched)
		if s.unwatched > 1 {
			text = "the watch fails: " + short(err)
		}
	} else {
		s.unwatched = 0
	}
	if s.blind != text {
		s.blind = text
		signal(s.news)
	}
}

// rechecksNamed has the controller look at applied objects that were named. What there is no room for is left to a listing.
func (s *session) rechecksNamed(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var crowded bool
	var listed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.rechecks.Named:
		case <-s.crowded:
			crowded = true
		case <-timer.C:
		}
		next, room := s.recheck()
		crowded = crowded || !room
		if again := listEvery - time.Since(listed); crowded && again <= 0 {
			crowded, listed = false, time.Now()
			if s.lister != nil {
				s.controller.List()
			}
		} else if crowded && (next == 0 || again < next) {
			next = again
		}
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// recheck has the controller look at what is due. It returns the time until more is, 0 if that is not known, and whether there was room.
func (s *session) recheck() (next time.Duration, room bool) {
	due, restless, next := s.rechecks.Take(time.Now())
	for _, at := range restless {
		s.log.Warn("object_keeps_changing", "resource", at.Resource, "key", at.Key, "effect", "it is repaired less and less often")
	}
	room = true
	for _, at := range due {
		switch {
		case !s.controller.IsApplied(at): // it has its turn
		case s.rechecks.Begin(at):
			s.metrics.watched.WithLabelValues(s.cfg.Name).Inc()
			s.controller.Enqueue(at)
		default:
			room = false
		}
	}
	return next, room
}
