package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/url"
	"time"
)

const (
	// silenceMost is after how long without a frame a connection counts as lost: a server sends one every 15 s.
	silenceMost = 45 * time.Second
	// The pause before another attempt: doubled from pauseMin to pauseMax, and shortened by up to half at random.
	pauseMin = 200 * time.Millisecond
	pauseMax = 15 * time.Second
)

// resetCut is the reason of a Reset that the server has not sent.
const resetCut = "cut"

var (
	errSilent = errors.New("the server has sent nothing for too long")
	errBrief  = errors.New("the server closes each response before it brings objects")
)

// WatchOptions are what Watch asks for. Zero is everything, from a snapshot on, without end.
type WatchOptions struct {
	Resources []string // these only; nil: all
	Prefix    string   // keys that begin with it; it needs exactly one resource
	Since     string   // a bookmark: what came after it; "": a snapshot first
	Once      bool     // return after the snapshot, or after what came until now
}

// Watch follows a target. It connects again when a connection is lost, after a pause that grows from 0.2 to 15 s until one
// brings objects or lasts for 15 s, and resumes where it was; a connection that brings nothing for 45 s counts as lost. While
// there is none, it yields a Waiting for each attempt.
//
// The last pair has an error, unless Once is set: the cause of ctx, or an error that another attempt would not change, which
// is ErrUnauthorized, ErrForbidden, ErrNotFound, ErrReleased, ErrInstallation, ErrProtocol, or a *StatusError with another status
// from 400 to 499.
func (c *Client) Watch(ctx context.Context, target string, opts WatchOptions) iter.Seq2[Frame, error] {
	return func(yield func(Frame, error) bool) {
		w := &watch{client: c, target: target, opts: opts, bookmark: opts.Since, yield: yield, silence: silenceMost}
		if err := w.run(ctx); err != nil && !errors.Is(err, errStopped) && !errors.Is(err, errDone) {
			yield(Frame{}, err)
		}
	}
}

var (
	errStopped = errors.New("the range loop has ended")
	errDone    = errors.New("everything that was asked for was sent")
)

type watch struct {
	client   *Client
	target   string
	opts     WatchOptions
	bookmark string // the newest one
	named    bool   // something was yielded that no bookmark covers
	failures int    // responses in a row that have brought no objects and did not last
	brings   bool   // the response that is under way has brought objects
	anew     bool   // after a reset, which may have brought them before
	yield    func(Frame, error) bool
	silence  time.Duration
}

func (w *watch) run(ctx context.Context) error {
	log := w.client.log.With("target", w.target)
	for {
		err := w.response(ctx)
		switch {
		case errors.Is(err, errStopped): // before ctx: the loop takes no other pair
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errDone), permanent(err):
			return err
		}
		if err == nil && w.failures > 1 {
			err = errBrief
		}
		pause := min(pauseMax, pauseMin<<min(w.failures, 10))
		pause -= rand.N(pause / 2)
		w.failures++
		if err != nil {
			log.Warn("stream_cut", "error", err.Error(), "again_in", pause)
			if err := w.send(Frame{Type: Waiting, Reason: err.Error()}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// permanent reports whether another attempt would not change an error.
func permanent(err error) bool {
	var status *StatusError
	return errors.Is(err, ErrReleased) || errors.Is(err, ErrInstallation) || errors.Is(err, ErrProtocol) ||
		errors.As(err, &status) && status.permanent()
}

// response follows one response to its end. It returns nil when the server has closed it, to be asked again.
func (w *watch) response(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(w.silence, func() { cancel(errSilent) })
	defer silent.Stop()
	resp, err := w.client.get(ctx, w.query(), w.target, "objects")
	if err != nil {
		return w.why(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	w.brings, w.anew = false, false
	began := time.Now()
	defer func() {
		if time.Since(began) >= pauseMax {
			w.failures = 0
		}
	}()
	if w.bookmark == "" && w.named {
		// Objects of the attempt before may have gone since: what it named does not count.
		if err := w.take(Frame{Type: Reset, Reason: resetCut}); err != nil {
			return err
		}
	}
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	for ended := false; ; {
		silent.Reset(w.silence)
		line, err := lines.ReadBytes('\n')
		silent.Stop() // what the receiver of a frame does with it may take as long as it likes
		switch {
		case errors.Is(err, io.EOF) && w.opts.Once && ended && len(line) == 0:
			return errDone
		case errors.Is(err, io.EOF):
			return w.why(ctx, fmt.Errorf("the response was cut: %w", io.ErrUnexpectedEOF))
		case err != nil:
			return w.why(ctx, fmt.Errorf("the response was cut: %w", err))
		}
		var f Frame
		if err := json.Unmarshal(line, &f); err != nil {
			return fmt.Errorf("read a frame: %w", err)
		}
		if f.Type == closed {
			return w.closed(f.Reason)
		}
		if err := w.take(f); err != nil {
			return err
		}
		ended = f.Bookmark != "" // a response that ends by itself ends with one
	}
}

// why is the error of a request, or what ended it.
func (*watch) why(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// take yields a frame, and notes where the stream is.
func (w *watch) take(f Frame) error {
	switch f.Type {
	case Reset:
		w.bookmark, w.named, w.anew = "", false, true
	case Upsert, Delete, Keep:
		w.named, w.brings = true, true
	default:
	}
	if err := w.send(f); err != nil {
		return err
	}
	if f.Bookmark == "" {
		return nil
	}
	w.bookmark = f.Bookmark
	if w.brings && !w.anew {
		w.failures = 0
	}
	return nil
}

func (w *watch) send(f Frame) error {
	if !w.yield(f, nil) {
		return errStopped
	}
	return nil
}

func (w *watch) query() url.Values {
	query := url.Values{"resource": w.opts.Resources}
	if w.opts.Prefix != "" {
		query.Set("prefix", w.opts.Prefix)
	}
	if w.bookmark != "" {
		query.Set("since", w.bookmark)
	}
	if !w.opts.Once {
		query.Set("watch", "true")
	}
	return query
}

// closed says what the end of a response means.
func (w *watch) closed(reason string) error {
	switch reason {
	case "released":
		return fmt.Errorf("%w: target %s has none any more; conclude nothing about its objects", ErrReleased, w.target)
	case "age", "draining": // in good order
		return nil
	}
	return fmt.Errorf("the server has closed the response: %s", reason)
}
