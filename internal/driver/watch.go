package driver

import (
	"context"
	"errors"
	"time"

	"github.com/pgreconciler/reconciler/internal/pace"
	"github.com/pgreconciler/reconciler/internal/throttle"
)

var (
	// watchAgain is the pause after a watch has failed.
	watchAgain = throttle.Backoff{Min: pace.Of(time.Second), Max: pace.Of(15 * time.Second)}
	// watchSteady is how long a watch runs before it counts as working.
	watchSteady = pace.Of(10 * time.Second)
)

// errWatchEnded is that of a watch that returns nil before its context ends.
var errWatchEnded = errors.New("the watch ended without an error")

// KeepWatching runs w.Watch until ctx ends, again and again: it pauses for 1 s after a failure and twice as long after each further one,
// up to 15 s, a fifth more or less. note gets the error of each failure, a panic included, and nil when a watch has run for 10 s.
func KeepWatching(ctx context.Context, w Watcher, changed func(resource, key string), note func(error)) {
	for failures := 1; ; failures++ {
		began := time.Now()
		steady := time.AfterFunc(watchSteady, func() { note(nil) })
		err := Safely(func() error { return w.Watch(ctx, changed) })
		steady.Stop()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errWatchEnded
		}
		note(err)
		if time.Since(began) >= watchSteady {
			failures = 1
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(throttle.Jittered(watchAgain.Pause(failures))):
		}
	}
}
