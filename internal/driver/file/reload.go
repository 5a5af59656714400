package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/process"
)

const (
	reloadRetryFirst = time.Second
	// reloadRetryMax is short: a change that mends what the command complains about waits for the next try too.
	reloadRetryMax = 10 * time.Second

	// reloadOwedName is a file beside the resources' directories. It is there from before a change until the
	// command has run: a process that was killed in between leaves word for its successor.
	reloadOwedName = ".reconciler-reload"
)

// reloadCommand is what to run after changes, and when.
type reloadCommand struct {
	command  process.Command
	scrubber driver.Scrubber
	debounce time.Duration
	timeout  time.Duration
}

// run runs the command once.
func (c reloadCommand) run(ctx context.Context) error {
	const shownBytesMax = 500
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("it took longer than %s", c.timeout))
	defer cancel()
	result, err := c.command.Run(ctx)
	if err == nil && result.Code == 0 {
		return nil
	}
	if err == nil {
		err = errors.New(result.String())
	}
	said := driver.SnippetTail([]byte(c.scrubber.Text(string(result.Stderr))), shownBytesMax)
	if said == "" {
		return fmt.Errorf("reload command: %w", err)
	}
	return fmt.Errorf("reload command: %w: %s", err, said)
}

// reloader runs a command in a goroutine of its own: a while after the first change of a burst, again for
// changes that came in since, and until it succeeds. A nil reloader does nothing.
type reloader struct {
	run      func(context.Context) error
	debounce time.Duration
	owedPath string
	logger   *slog.Logger

	wake   chan struct{} // size 1: something changed since the last run began
	stop   chan struct{}
	once   sync.Once // closes stop
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	changes  uint64 // guarded by mu: begun so far
	changing int    // guarded by mu: begun and not ended
	noted    bool   // guarded by mu: the file at owedPath is there
	trouble  error  // guarded by mu
}

func startReloader(run func(context.Context) error, debounce time.Duration, owedPath string, log *slog.Logger) *reloader {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reloader{
		run: run, debounce: debounce, owedPath: owedPath, logger: log, cancel: cancel,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go r.loop(ctx)
	return r
}

// start finds out whether another process left a reload undone: at each start of ownership, for it may have owned the target between.
func (r *reloader) start() {
	if r == nil {
		return
	}
	if _, err := os.Lstat(r.owedPath); err == nil {
		r.begin()
		r.end(true)
	}
}

// begin is told before a change; end follows.
func (r *reloader) begin() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes++
	r.changing++
	if r.noted {
		return
	}
	// Not on disk before the change is: after a crash of the machine the other program starts anew as well.
	// Without the file all is well too, unless this process is killed.
	r.noted = leaveWord(r.owedPath) == nil
}

// leaveWord makes an empty file, if there is none. What else has its name goes: to open a named pipe would wait, and through
// a link it would be a file elsewhere.
func leaveWord(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// end is told whether the change was made.
func (r *reloader) end(changed bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.changing--
	r.mu.Unlock()
	if !changed {
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// failure returns why the last run failed, or nil.
func (r *reloader) failure() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trouble
}

// close runs a reload that is still owed, at once, and waits for it, or cuts it when the context ends. It
// returns why the last run failed.
func (r *reloader) close(ctx context.Context) error {
	if r == nil {
		return nil
	}
	r.once.Do(func() { close(r.stop) })
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	r.cancel()
	<-r.done
	return r.failure()
}

func (r *reloader) loop(ctx context.Context) {
	defer close(r.done)
	for {
		select {
		case <-r.wake:
		case <-r.stop:
			select {
			case <-r.wake: // the last changes, if both were ready
				r.attempt(ctx, 0)
			default:
			}
			return
		}
		// Counted from the first change of a burst, so that changes that never end cannot put it off for ever.
		stopping := r.pause(r.debounce)
		for retry := r.attempt(ctx, 0); retry > 0 && !stopping; retry = r.attempt(ctx, retry) {
			// Spread, so that many targets with one broken command do not run it in step. Changes do not cut it
			// short: a command that fails shall not run as often as rows change.
			stopping = r.pause(retry/2 + rand.N(retry))
		}
	}
}

// pause returns true when the driver is closed, at once.
func (r *reloader) pause(d time.Duration) (stopping bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return false
	case <-r.stop:
		return true
	}
}

// attempt runs the command for all changes until now, and returns the pause before the next try: 0 if all is well.
func (r *reloader) attempt(ctx context.Context, before time.Duration) time.Duration {
	select {
	case <-r.wake:
	default:
	}
	r.mu.Lock()
	changes := r.changes
	if r.changing > 0 {
		changes-- // one may happen during the run: not all are covered
	}
	r.mu.Unlock()
	err := r.run(ctx)
	r.note(changes, err)
	if err == nil {
		if before > 0 {
			r.logger.Info("reload_works_again")
		}
		return 0
	}
	next := min(max(2*before, reloadRetryFirst), reloadRetryMax)
	r.logger.Warn("reload_failed", "error", err.Error(), "retry_in", next.String())
	return next
}

// note records how a run ended that began after so many changes. The word to a successor goes only if the run
// came after all of them.
func (r *reloader) note(changes uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trouble = err
	if err == nil && r.changes == changes && r.noted {
		r.noted = os.Remove(r.owedPath) != nil
	}
}
