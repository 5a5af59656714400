package watch

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// writeTimeout is how long a write may block: a client that reads nothing for so long is gone.
const writeTimeout = time.Minute

// bufferBytes is how much is written at once.
const bufferBytes = 32 << 10

// output writes frames, as lines of JSON or as server-sent events.
type output struct {
	w      http.ResponseWriter
	ctl    *http.ResponseController
	events bool
	gzip   *gzip.Writer // nil: not compressed
	buffer *[]byte      // nil: nothing is to be written
}

// newOutput writes the headers. A response that has no end is not compressed: that would cost a megabyte for each watcher.
func newOutput(w http.ResponseWriter, r *http.Request, endless bool) output {
	o := output{w: w, ctl: http.NewResponseController(w), events: strings.Contains(r.Header.Get("Accept"), "text/event-stream")}
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
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// frame adds a frame, which encode appends; id is its bookmark, "" for none.
func (o *output) frame(encode func([]byte) []byte, id string) error {
	if o.buffer == nil {
		o.buffer = buffers.Get().(*[]byte) //nolint:forcetypeassert // nothing else is in the pool
	}
	b := *o.buffer
	if o.events && id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	if o.events {
		b = append(b, "data: "...)
	}
	b = append(encode(b), '\n')
	if o.events {
		b = append(b, '\n')
	}
	*o.buffer = b
	if len(b) < bufferBytes {
		return nil
	}
	return o.write()
}

// write hands what is in the buffer to the connection.
func (o *output) write() error {
	if o.buffer == nil {
		return nil
	}
	if err := o.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	var to io.Writer = o.w
	if o.gzip != nil {
		to = o.gzip
	}
	_, err := to.Write(*o.buffer)
	if cap(*o.buffer) <= 2*bufferBytes { // else the pool would keep what a giant needed
		*o.buffer = (*o.buffer)[:0]
		buffers.Put(o.buffer)
	}
	o.buffer = nil
	return err
}

// flush sends what was written.
func (o *output) flush() error {
	if err := o.write(); err != nil {
		return err
	}
	if o.gzip != nil {
		if err := o.gzip.Flush(); err != nil {
			return err
		}
	}
	return o.ctl.Flush()
}

// close ends the response.
func (o *output) close() error {
	if err := o.write(); err != nil || o.gzip == nil {
		return err
	}
	return o.gzip.Close()
}
