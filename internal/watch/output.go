package watch

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// writeTimeout is how long a write may block: a client that reads nothing for so long is gone.
	writeTimeout = time.Minute
	// stallTimeout is the same for a client whose page takes memory that others wait for.
	stallTimeout = 5 * time.Second
	// bufferBytes is how much is written at once.
	bufferBytes = 32 << 10
	// headBytes is room in a buffer for what comes before a spec.
	headBytes = 8 << 10
)

// output writes frames, as lines of JSON or as server-sent events.
type output struct {
	w      http.ResponseWriter
	events bool
	gzip   *gzip.Writer // nil: not compressed
	buffer *[]byte      // nil: nothing is to be written

	writing *writing
}

// writing is the write of a response that is under way.
type writing struct {
	ctl   *http.ResponseController
	holds atomic.Bool // memory of the pool for pages

	mu    sync.Mutex // guards since, and the deadline of the connection
	since time.Time  // zero: there is no write
}

func newWriting(w http.ResponseWriter) *writing { return &writing{ctl: http.NewResponseController(w)} }

// newOutput writes the headers. A response that has no end is not compressed: that would cost a megabyte for each watcher.
func newOutput(w http.ResponseWriter, r *http.Request, endless bool) output {
	o := output{writing: newWriting(w), w: w, events: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
	h := w.Header()
	h.Set("Content-Type", "application/x-ndjson")
	if o.events {
		h.Set("Content-Type", "text/event-stream")
	}
	h.Set("X-Accel-Buffering", "no")
	h.Add("Vary", "Accept, Accept-Encoding")
	if !endless && acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		o.gzip = gzip.NewWriter(w)
	}
	w.WriteHeader(http.StatusOK)
	return o
}

func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if name == "gzip" {
			return strings.TrimSpace(quality) != "q=0"
		}
	}
	return false
}

// buffers are lent to responses while they have something to write: an idle watcher has none.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, bufferBytes+headBytes)
	return &b
}}

// addFrame adds a frame, in three parts: what head appends (nil: nothing), body and end. id is its bookmark, "" for none.
func addFrame[T string | []byte](o *output, head func([]byte) []byte, body T, end, id string) error {
	o.lend()
	*o.buffer = o.begin(*o.buffer, id)
	if head != nil {
		*o.buffer = head(*o.buffer)
	}
	if err := add(o, body); err != nil {
		return err
	}
	if o.events {
		end += "\n"
	}
	return add(o, end+"\n")
}

// sendChange sends a change alone.
func (o *output) sendChange(c change) error {
	if err := addFrame(o, c.appendHead, c.spec, "}", ""); err != nil {
		return err
	}
	return o.write()
}

// lend gets a buffer if there is none.
func (o *output) lend() {
	if o.buffer == nil {
		o.buffer = buffers.Get().(*[]byte) //nolint:forcetypeassert // nothing else is in the pool
	}
}

// begin appends what comes before the text of a frame.
func (o *output) begin(b []byte, id string) []byte {
	if o.events && id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	if o.events {
		b = append(b, "data: "...)
	}
	return b
}

// add adds a part of a frame, and writes whenever the buffer is full: no buffer is as large as a spec.
func add[T string | []byte](o *output, part T) error {
	for {
		o.lend()
		n := min(len(part), max(0, bufferBytes-len(*o.buffer)))
		*o.buffer = append(*o.buffer, part[:n]...)
		if part = part[n:]; len(*o.buffer) < bufferBytes {
			return nil
		}
		if err := o.write(); err != nil || len(part) == 0 {
			return err
		}
	}
}

// now sends a short frame at once. If nothing else is to be written it takes no buffer, for a client that reads nothing would keep it.
func (o *output) now(data []byte, id string) error {
	if o.buffer == nil {
		b := append(o.begin(make([]byte, 0, len(data)+len(id)+16), id), data...)
		if o.events {
			b = append(b, '\n')
		}
		b = append(b, '\n')
		o.buffer = &b
	} else if err := addFrame(o, nil, data, "", id); err != nil {
		return err
	}
	return o.flush()
}

// write hands what is in the buffer to the connection.
func (o *output) write() error {
	if o.buffer == nil {
		return nil
	}
	var to io.Writer = o.w
	if o.gzip != nil {
		to = o.gzip
	}
	err := o.writing.timed(func() error {
		_, err := to.Write(*o.buffer)
		return err
	})
	if cap(*o.buffer) == bufferBytes+headBytes { // else the pool would keep what a long key needed, or what is too small
		*o.buffer = (*o.buffer)[:0]
		buffers.Put(o.buffer)
	}
	o.buffer = nil
	return err
}

// timed writes to the connection. It fails after writeTimeout, or earlier if the client has stalled.
func (w *writing) timed(write func() error) error {
	w.mu.Lock()
	w.since = time.Now()
	err := w.ctl.SetWriteDeadline(w.since.Add(writeTimeout))
	w.mu.Unlock()
	if err == nil {
		err = write()
	}
	w.mu.Lock()
	w.since = time.Time{}
	w.mu.Unlock()
	return err
}

// endStalled ends a write that holds memory and has made no progress for some time. It reports whether there was one.
func (w *writing) endStalled(after time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.holds.Load() || w.since.IsZero() || time.Since(w.since) < after {
		return false
	}
	return w.ctl.SetWriteDeadline(time.Now()) == nil
}

// flush sends what was written.
func (o *output) flush() error {
	if err := o.write(); err != nil {
		return err
	}
	return o.writing.timed(func() error {
		if o.gzip != nil {
			if err := o.gzip.Flush(); err != nil {
				return err
			}
		}
		return o.writing.ctl.Flush()
	})
}

// close ends the response.
func (o *output) close() error {
	if err := o.write(); err != nil || o.gzip == nil {
		return err
	}
	return o.gzip.Close()
}
