package driver

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

var (
	// watchAgain is the pause after a watch has ended.
	watchAgain = throttle.Backoff{Min: pace.Of(time.Second), Max: pace.Of(15 * time.Second)}
	// watchSteady is how long a watch runs before it counts as working.
	watchSteady = pace.Of(10 * time.Second)
)

// ErrRestored is that of a Watcher whose target was set back to an earlier state. It has a sync of all resources requested.
var ErrRestored = errors.New("the target was set back to an earlier state, as by a restore of its database; a sync compares all of it")

// errWatchEnded is that of a watch that returns nil and has not worked.
var errWatchEnded = errors.New("the watch ended without an error")

// KeepWatching keeps w.Watch running until ctx ends; see Keep. While it runs, note gets what it leaves out, or nil, every 10 s.
func KeepWatching(ctx context.Context, w Watcher, changed func(resource, key string), note func(error)) {
	Keep(ctx, func(worked func()) error {
		defer Steady(worked)()
		return w.Watch(ctx, changed)
	}, func(err error) {
		if parts, ok := w.(PartWatcher); ok && err == nil {
			err = Safely(parts.Unwatched)
		}
		note(err)
	})
}

// Keep runs a watch until ctx ends, again and again. It pauses for 1 s after one that called worked, and twice as long after each further
// one that did not, up to 15 s, a fifth more or less: a watch can end as soon as it has begun, with or without an error. note gets the error
// of each failure, a panic included, and nil for each call of worked.
func Keep(ctx context.Context, watch func(worked func()) error, note func(error)) {
	for failures := 1; ; failures++ {
		var works atomic.Bool
		err := Safely(func() error { return watch(func() { works.Store(true); note(nil) }) })
		if ctx.Err() != nil {
			return
		}
		if err == nil && !works.Load() {
			err = errWatchEnded
		}
		if err != nil {
			note(err)
		}
		if works.Load() {
			failures = 1
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(throttle.Jittered(watchAgain.Pause(failures))):
		}
	}
}

// Steady calls worked every 10 s until stop is called.
func Steady(worked func()) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(watchSteady)
		defer ticker.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-ticker.C:
				worked()
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}
