package watch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgreconciler/reconciler/internal/budget"
)

const (
	// batchFrames and batchBytes bound the frames that are written at once, beside one.
	batchFrames = 500
	batchBytes  = 64 << 10
	// heartbeat is the mean pause between checkpoints on an idle stream, which differs by a fifth.
	heartbeat = 15 * time.Second
	// A response ends after a time between these, so that watchers spread over processes.
	ageMin = 30 * time.Minute
	ageMax = 60 * time.Minute
)

// watcher is one response: a place in a stream, and what it has to send from there on.
type watcher struct {
	hub     *Hub
	grant   *grant
	target  *target
	group   *group
	filter  filter
	follow  bool // go on after the snapshot
	timeout time.Duration
	since   *bookmark
	out     output
	loan    *budget.Loan    // of the bytes that it is sending; nil: none
	holds   atomic.Bool     // the same, for the hub
	stop    <-chan struct{} // closed when the process drains

	frames, bytes prometheus.Counter

	beat  *time.Timer
	age   *time.Timer
	limit <-chan time.Time

	at      bookmark // stream, epoch and version: everything up to it was sent
	era     int64
	reached int64
	ack     bool
	sent    atomic.Int64 // at.version, for count

	controls, sentControls controls // the newest ones that were read, and those that were sent last
}

// ended ends a response with its reason.
type ended struct{ reason string }

func (e ended) Error() string { return e.reason }

// again makes a watcher begin anew with a snapshot.
type again struct{ reason string }

func (a again) Error() string { return a.reason }

// run sends everything until the client has gone, or the stream ends with a reason.
func (w *watcher) run(ctx context.Context) error {
	w.frames, w.bytes = w.hub.cfg.Metrics.StreamFrames.WithLabelValues(w.target.name), w.hub.cfg.Metrics.StreamBytes.WithLabelValues(w.target.name)
	w.age = time.NewTimer(ageMin + rand.N(ageMax-ageMin))
	defer w.age.Stop()
	w.beat = time.NewTimer(pause())
	defer w.beat.Stop()
	if w.timeout > 0 {
		timer := time.NewTimer(w.timeout)
		defer timer.Stop()
		w.limit = timer.C
	}
	defer w.giveBack()
	err := w.stream(ctx)
	if end := (ended{}); errors.As(err, &end) {
		return w.sendNow(encodeNotice("closed", end.reason), "")
	}
	return err
}

func pause() time.Duration { return heartbeat*4/5 + rand.N(heartbeat*2/5) }

func (w *watcher) stream(ctx context.Context) error {
	err := w.resume()
	for {
		whole := w.since == nil || w.at.paging
		if err == nil && whole {
			err = w.snapshot(ctx)
		}
		if err == nil && (w.follow || !whole) {
			err = w.live(ctx)
		}
		reset := again{}
		if !errors.As(err, &reset) {
			return err
		}
		if err = w.reset(reset.reason); err != nil {
			return err
		}
	}
}

// resume takes the place of the bookmark, if it is one of this stream.
func (w *watcher) resume() error {
	s, _, _, _ := w.target.look(w.group, 0, 0) //nolint:dogsled // a look that reads nothing
	w.era = s.era
	if w.since == nil {
		return nil
	}
	switch {
	case w.since.scope != w.filter.scope():
		return again{resetScope}
	case w.since.stream != s.stream:
		return again{resetUnknown}
	case w.since.epoch != s.epoch:
		return again{resetRestored}
	}
	w.at, w.reached = *w.since, s.reached
	w.sent.Store(w.at.version)
	return nil
}

func (w *watcher) reset(reason string) error {
	w.since, w.at, w.controls = nil, bookmark{}, controls{}
	w.target.mu.Lock()
	w.target.resets++
	w.target.mu.Unlock()
	w.hub.cfg.Metrics.StreamResets.WithLabelValues(w.target.name, reason).Inc()
	return w.sendNow(encodeNotice("reset", reason), "")
}

// live sends what follows. A client that does not follow has everything when it returns nil.
func (w *watcher) live(ctx context.Context) error {
	resumed := w.since != nil
	w.since = nil
	due := resumed // a checkpoint at once: "current" must differ from "nothing yet"
	for {
		s, frames, ok, changed := w.target.look(w.group, w.at.version, batchFrames)
		if err := w.check(s); err != nil {
			return err
		}
		// What was committed before the request is in the answer, though the hub may not have read it yet.
		if !ok || resumed {
			before := w.at.version
			read := w.catchUp
			if resumed {
				read = w.join
			}
			if err := read(ctx); err != nil {
				return err
			}
			resumed, due = false, due || w.at.version > before
			if w.at.version > before {
				continue
			}
		}
		if len(frames) > 0 {
			due = true
			if err := w.sendAll(ctx, frames); err != nil {
				return err
			}
			if len(frames) == batchFrames || sizeOf(frames) >= batchBytes {
				continue
			}
		}
		if ok { // else the table has nothing newer, and the hub is about to see that versions went back
			w.advance(s.head)
			w.reached = max(w.reached, s.reached)
		}
		w.obey(s.controls)
		if due || w.controls != w.sentControls {
			if err := w.checkpoint(); err != nil {
				return err
			}
		}
		if !w.follow {
			return nil
		}
		var err error
		if due, err = w.idle(ctx, changed, s.silent); err != nil {
			return err
		}
	}
}

// idle returns when something has changed, or a checkpoint is due. While the database is silent, it sends that instead.
func (w *watcher) idle(ctx context.Context, changed <-chan struct{}, silent bool) (due bool, err error) {
	beat, err := w.wait(ctx, changed)
	if err == nil && beat && silent {
		err = w.waiting(waitingDatabase)
	}
	return beat && !silent, err
}

// check ends what the stream does not carry on.
func (w *watcher) check(s state) error {
	switch {
	case w.ending() != nil:
		return w.ending()
	case s.gone:
		return ended{closedReleased}
	case s.era != w.era:
		return again{resetRestored}
	}
	return nil
}

// ending returns why the response is to end, also in the middle of a long snapshot.
func (w *watcher) ending() error {
	select {
	case <-w.grant.revoked:
		return ended{closedRevoked}
	case <-w.stop:
		return ended{closedDraining}
	default:
		return nil
	}
}

// obey notes controls. Those of the hub may be older than those that this watcher has read itself.
func (w *watcher) obey(c controls) {
	if c.newer(w.controls) {
		w.controls = c
	}
}

// advance notes that everything up to a version was sent.
func (w *watcher) advance(version int64) {
	w.at.version = max(w.at.version, version)
	w.sent.Store(w.at.version)
}

// sendAll sends frames that all watchers share. They count as if they were this watcher's: when its client reads slowly, it may be
// the last that holds them.
func (w *watcher) sendAll(ctx context.Context, frames []frame) error {
	if err := w.take(ctx, bufferBytes+sizeOf(frames)); err != nil {
		return err
	}
	for _, f := range frames {
		w.count(len(f.data))
		if err := addFrame(&w.out, nil, f.data, "", ""); err != nil {
			return err
		}
	}
	w.advance(frames[len(frames)-1].version)
	return nil
}

func (w *watcher) count(bytes int) {
	w.frames.Inc()
	w.bytes.Add(float64(bytes))
}

// send adds a frame to what is to be sent.
func (w *watcher) send(data []byte) error {
	w.count(len(data))
	return addFrame(&w.out, nil, data, "", "")
}

// sendChange sends a change from where it is.
func (w *watcher) sendChange(c change) error {
	return addFrame(&w.out, func(b []byte) []byte {
		before := len(b)
		b = c.appendHead(b)
		w.count(len(b) - before + len(c.spec) + 1)
		return b
	}, c.spec, "}", "")
}

// sendNow sends a short frame, and whatever was to be sent before it. bookmark is that of the frame, "" for none.
func (w *watcher) sendNow(data []byte, bookmark string) error {
	w.count(len(data))
	return w.out.now(data, bookmark)
}

// waiting sends a frame that says what keeps the stream from going on, at once.
func (w *watcher) waiting(reason string) error { return w.sendNow(encodeNotice("waiting", reason), "") }

// checkpoint sends the place of the watcher, and flushes.
func (w *watcher) checkpoint() error {
	c := w.target.checkpoint(w.group, w.at, w.reached, w.controls)
	if !w.at.paging {
		w.sentControls = w.controls
	}
	return w.sendNow(c.data, c.text)
}

// wait returns when something has changed or the heartbeat is due, and an error when the response is to end. Everything was flushed.
func (w *watcher) wait(ctx context.Context, changed <-chan struct{}) (beat bool, err error) {
	w.giveBack()
	select {
	case <-changed:
		return false, nil
	case <-w.beat.C:
		w.beat.Reset(pause())
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-w.grant.revoked:
		return false, ended{closedRevoked}
	case <-w.stop:
		return false, ended{closedDraining}
	case <-w.age.C:
		return false, ended{closedAge}
	case <-w.limit:
		return false, ended{closedTimeout}
	}
}
