package watch

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// The bounds of a report, before compression and after.
	reportBytes     = 64 << 20
	reportLineBytes = 64 << 10
	reportRows      = 100_000

	sessionBytes = 64
)

// report is a body that was read to its end.
type report struct {
	params store.StreamReportParams
	lines  []int          // of each observation
	states map[string]int // how many observations have which
}

// header is the first line of a body.
type header struct {
	Session  string    `json:"session"`
	Seq      int64     `json:"seq"`
	Complete bool      `json:"complete"`
	Version  int64     `json:"version"`
	Client   *identity `json:"client"`
}

// readReport reads a body line by line. grow is called when it turns out to be a large one.
func readReport(w http.ResponseWriter, r *http.Request, g *grant, grow func(context.Context) error) (*report, error) {
	body, err := openBody(w, r)
	if err != nil {
		return nil, err
	}
	in := &lines{from: bufio.NewReaderSize(body, reportLineBytes), grow: func() error { return grow(r.Context()) }}
	line, err := in.next()
	if err != nil {
		return nil, err
	}
	var first header
	if err := decodeLine(line, &first); err != nil {
		return nil, badBody("line %d: %v", in.number, err)
	}
	if first.Session == "" || len(first.Session) > sessionBytes || first.Session != storable(first.Session) {
		return nil, badBody("line %d: session must be a text of 1 to %d bytes", in.number, sessionBytes)
	}
	if first.Seq < 1 {
		return nil, badBody("line %d: seq must be a whole number from 1 on, which grows with each report of the session", in.number)
	}
	if first.Version < 0 || first.Version > 0 && !first.Complete {
		return nil, badBody("line %d: version is that of a frame up to which a complete report goes, a whole number from 1 on", in.number)
	}
	client, err := first.Client.encode()
	if err != nil {
		return nil, badBody("line %d: %v", in.number, err)
	}
	report := &report{states: map[string]int{}, params: store.StreamReportParams{
		Session: first.Session, Seq: first.Seq, Complete: first.Complete, AsOf: first.Version, Client: client,
		Resources: []string{}, Keys: []string{}, Versions: []int64{}, States: []string{}, Messages: []string{}, Healthy: []string{}, Statuses: []string{}, // nil is NULL
	}}
	return report, report.readObservations(in, g)
}

// readObservations reads the lines after the first, up to the end of the body.
func (r *report) readObservations(in *lines, g *grant) error {
	for {
		line, err := in.next()
		if err != nil {
			return err
		}
		var o observation
		if err := decodeLine(line, &o); err != nil {
			return badBody("line %d: %v", in.number, err)
		}
		if o.End != nil {
			if !*o.End || o.Resource != "" || o.Key != nil {
				return badBody(`line %d: the last line is {"end":true}`, in.number)
			}
			return in.finish()
		}
		if err := o.check(); err != nil {
			return atLine(in.number, err)
		}
		if _, refused := g.limit([]string{o.Resource}); refused != "" {
			return &refusal{http.StatusForbidden, "forbidden", "token " + quoted(g.name) + " may not report on resource " + quoted(refused)}
		}
		if len(r.lines) == reportRows {
			return tooLarge("a report has at most %d observations: send the others in another one", reportRows)
		}
		r.add(o, in.number)
	}
}

func (r *report) add(o observation, line int) {
	p := &r.params
	p.Resources, p.Keys = append(p.Resources, storable(o.Resource)), append(p.Keys, storable(*o.Key))
	p.Versions, p.States = append(p.Versions, o.Version), append(p.States, o.State)
	p.Messages, p.Statuses = append(p.Messages, cut(storable(o.Message), messageBytes)), append(p.Statuses, string(o.Status))
	healthy := ""
	if o.Healthy != nil {
		healthy = strconv.FormatBool(*o.Healthy)
	}
	p.Healthy = append(p.Healthy, healthy)
	r.lines = append(r.lines, line)
	r.states[o.State]++
}

// openBody returns the body without its compression, bounded in both forms.
func openBody(w http.ResponseWriter, r *http.Request) (io.Reader, error) {
	body := http.MaxBytesReader(w, r.Body, reportBytes)
	switch coding := r.Header.Get("Content-Encoding"); coding {
	case "", "identity":
		return body, nil
	case "gzip":
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, bodyError(err)
		}
		return unzipped, nil
	default:
		return nil, badBody("Content-Encoding %q is not known: there is gzip", coding)
	}
}

// lines reads a body line by line.
type lines struct {
	from   *bufio.Reader
	number int // of the line that was read last
	bytes  int
	grow   func() error
}

// next returns the next line that is not empty, valid until the next call. A body that ends before is refused.
func (l *lines) next() ([]byte, error) {
	for {
		line, err := l.read()
		switch {
		case errors.Is(err, io.EOF):
			return nil, badBody(`the body ends after line %d without {"end":true}: it was cut, and nothing of it is stored`, l.number)
		case err != nil:
			return nil, err
		case len(line) > 0:
			if !utf8.Valid(line) {
				return nil, badBody("line %d is not valid UTF-8", l.number)
			}
			return line, nil
		}
	}
}

// read returns the next line without the white space around it, and io.EOF after the last one.
func (l *lines) read() ([]byte, error) {
	line, err := l.from.ReadSlice('\n')
	before := l.bytes
	l.bytes += len(line)
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, tooLarge("line %d is longer than %d bytes", l.number+1, reportLineBytes)
	case l.bytes > reportBytes:
		return nil, tooLarge("the body is larger than %d bytes: send it in several reports", reportBytes)
	case err != nil && !errors.Is(err, io.EOF):
		return nil, bodyError(err)
	case err != nil && len(line) == 0:
		return nil, io.EOF
	}
	if before <= smallBytes && l.bytes > smallBytes {
		if err := l.grow(); err != nil {
			return nil, err
		}
	}
	l.number++
	return bytes.TrimSpace(line), nil
}

// finish reads what follows the last line, which must be nothing.
func (l *lines) finish() error {
	for {
		line, err := l.read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(line) > 0:
			return badBody(`line %d follows {"end":true}`, l.number)
		}
	}
}

// bodyError says why a body cannot be read.
func bodyError(err error) error {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return tooLarge("the body is larger than %d bytes: send it in several reports", reportBytes)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return busy("the body did not arrive in time")
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		return badBody("the body is not gzip, as Content-Encoding says")
	default:
		return badBody("the body cannot be read to its end: %v", err)
	}
}
