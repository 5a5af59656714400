package streamtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/client"
)

const (
	// A checkpoint comes this often on an idle stream.
	checkpointEvery = 15 * time.Second
	// A snapshot has a checkpoint after so many objects.
	pageRows = 100
)

var errCut = errors.New("the response is cut")

// bookmark is where a stream goes on.
type bookmark struct {
	Epoch   int       `json:"e"`
	Version int64     `json:"v"` // of the last change that was sent, or, within a snapshot, at its beginning
	Scope   string    `json:"s"`
	Paging  bool      `json:"p,omitempty"`
	At      [2]string `json:"a"` // resource and key of the last object before it
}

func (b bookmark) String() string {
	text, _ := json.Marshal(b) //nolint:errchkjson // of texts and numbers, which cannot fail
	return base64.RawURLEncoding.EncodeToString(text)
}

func parseBookmark(text string) (b bookmark, err error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &b)
	}
	if err != nil {
		return b, errors.New("since is not a bookmark: use the text of a checkpoint or an end_of_snapshot, unchanged")
	}
	return b, nil
}

// watcher serves one response.
type watcher struct {
	server     *Server
	query      query
	out        http.ResponseWriter
	at         bookmark
	generation int
	cutAfter   int
	sent       int
	controls   client.Controls  // the last ones that were sent
	end        <-chan time.Time // of the response
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q, err := parse(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	watcher := &watcher{server: s, query: q, out: w}
	s.mu.Lock()
	watcher.generation, watcher.cutAfter, s.cutAfter = s.generation, s.cutAfter, 0
	s.mu.Unlock()
	if q.timeout > 0 {
		timer := time.NewTimer(q.timeout)
		defer timer.Stop()
		watcher.end = timer.C
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	if err := watcher.serve(r.Context()); errors.Is(err, errCut) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// serve sends a snapshot, if one is due, and what follows.
func (w *watcher) serve(ctx context.Context) error {
	snapshot := w.query.since == ""
	if reason := w.resume(); reason != "" {
		snapshot, w.at = true, bookmark{}
		if err := w.send(client.Frame{Type: client.Reset, Reason: reason}); err != nil {
			return err
		}
	}
	if snapshot || w.at.Paging {
		if err := w.snapshot(ctx); err != nil {
			return err
		}
	} else if err := w.changes(true); err != nil {
		return err
	}
	for w.query.watch {
		changed, reason := w.look()
		if reason != "" {
			if err := errors.Join(w.send(client.Frame{Type: client.Reset, Reason: reason}), w.snapshot(ctx)); err != nil {
				return err
			}
			continue
		}
		if err := w.wait(ctx, changed); err != nil {
			return err
		}
	}
	return nil
}

// look sends what is new, and returns a channel that is closed when there is more, or why the client must begin again.
func (w *watcher) look() (changed <-chan struct{}, reset string) {
	s := w.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.at.Epoch != s.epoch {
		return nil, s.reason
	}
	return s.changed, ""
}

// wait sends changes when there are some, and a checkpoint now and then.
func (w *watcher) wait(ctx context.Context, changed <-chan struct{}) error {
	if err := w.changes(false); err != nil {
		return err
	}
	idle := time.NewTimer(checkpointEvery)
	defer idle.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-w.end:
		return errors.Join(w.send(client.Frame{Type: "closed", Reason: "timeout"}), errors.New("timeout"))
	case <-changed:
		return w.alive()
	case <-idle.C:
		return w.checkpoint(client.Checkpoint)
	}
}

func (w *watcher) alive() error {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	if w.generation != w.server.generation {
		return errCut
	}
	return nil
}

// resume takes over the bookmark of a request, or returns why it cannot.
func (w *watcher) resume() (reset string) {
	s := w.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.query.since == "" {
		return ""
	}
	w.at = w.query.at
	switch {
	case w.at.Epoch != s.epoch:
		return s.reason
	case w.at.Scope != w.query.scope():
		return "scope"
	case w.at.Version > s.version:
		return "unknown"
	case w.at.Version < s.floor:
		return "expired"
	}
	return ""
}

func (q query) scope() string { return fmt.Sprintf("%q %q", q.resources, q.prefix) }

func (q query) has(at id) bool {
	return (len(q.resources) == 0 || slices.Contains(q.resources, at.resource)) && strings.HasPrefix(at.key, q.prefix)
}

// changes sends what is newer than the last change, and a checkpoint after it or after other controls, or in any case.
func (w *watcher) changes(always bool) error {
	w.server.mu.Lock()
	controlled := w.server.controls != w.controls
	w.server.mu.Unlock()
	sent, err := w.newer()
	if err == nil && (sent > 0 || controlled || always) {
		err = w.checkpoint(client.Checkpoint)
	}
	return err
}

// newer sends what is newer than the last change, in the order of versions, and returns how much it was.
func (w *watcher) newer() (int, error) {
	s := w.server
	s.mu.Lock()
	var newer []*object
	if w.at.Epoch == s.epoch {
		for _, o := range s.objects {
			if o.version > w.at.Version && w.query.has(o.id) {
				newer = append(newer, o)
			}
		}
		if !w.at.Paging {
			w.at.Version = s.version
		}
	}
	s.mu.Unlock()
	slices.SortFunc(newer, func(a, b *object) int { return int(a.version - b.version) })
	for _, o := range newer {
		if err := w.send(o.frame()); err != nil {
			return 0, err
		}
	}
	return len(newer), nil
}

// checkpoint sends where the stream is.
func (w *watcher) checkpoint(kind client.FrameType) error {
	f := client.Frame{Type: kind, Bookmark: w.at.String()}
	if !w.at.Paging {
		w.server.mu.Lock()
		w.controls = w.server.controls
		w.server.mu.Unlock()
		controls := w.controls
		f.Version, f.Revision, f.Controls = w.at.Version, w.at.Version, &controls
	}
	return w.send(f)
}

// send sends a frame, unless the response is cut before.
func (w *watcher) send(f client.Frame) error {
	if err := w.alive(); err != nil {
		return err
	}
	if w.cutAfter > 0 && w.sent == w.cutAfter {
		return errCut
	}
	w.sent++
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if _, err := w.out.Write(append(text, '\n')); err != nil {
		return err
	}
	return http.NewResponseController(w.out).Flush()
}

// ids returns the keys of a map that a client asks for, in order.
func ids[V any](w *watcher, of map[id]V) []id {
	return slices.DeleteFunc(ordered(of), func(at id) bool { return !w.query.has(at) })
}
