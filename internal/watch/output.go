package watch

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"time"
)

// writeTimeout is how long a write may block: a client that reads nothing for so long is gone.
const writeTimeout = time.Minute

// output writes frames, as lines of JSON or as server-sent events.
type output struct {
	w      http.ResponseWriter
	ctl    *http.ResponseController
	events bool
	gzip   *gzip.Writer // nil: not compressed
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

// frame writes a frame; id is its bookmark, "" for none.
func (o *output) frame(data []byte, id string) error {
	if err := o.ctl.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if !o.events {
		return o.write(data, newline)
	}
	if id != "" {
		return o.write([]byte("id: "+id+"\ndata: "), data, blankLine)
	}
	return o.write(dataField, data, blankLine)
}

var newline, blankLine, dataField = []byte("\n"), []byte("\n\n"), []byte("data: ")

func (o *output) write(parts ...[]byte) error {
	var to io.Writer = o.w
	if o.gzip != nil {
		to = o.gzip
	}
	for _, part := range parts {
		if _, err := to.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// flush sends what was written.
func (o *output) flush() error {
	if o.gzip != nil {
		if err := o.gzip.Flush(); err != nil {
			return err
		}
	}
	return o.ctl.Flush()
}

// close ends the response.
func (o *output) close() error {
	if o.gzip != nil {
		return o.gzip.Close()
	}
	return nil
}
