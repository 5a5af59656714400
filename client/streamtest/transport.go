package streamtest

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// transport hands requests to a handler, and needs no network.
type transport struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	reader, writer := io.Pipe()
	w := &response{header: http.Header{}, body: writer, began: make(chan struct{})}
	done := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	if r.Body == nil {
		r.Body = http.NoBody
	}
	go func() {
		defer close(done)
		defer unhook()
		defer func() {
			w.WriteHeader(http.StatusOK)
			if value := recover(); value != nil {
				_ = writer.CloseWithError(io.ErrUnexpectedEOF) // as a connection that is cut
				return
			}
			_ = writer.Close()
		}()
		t.handler.ServeHTTP(w, r.WithContext(ctx))
	}()
	select {
	case <-w.began:
	case <-ctx.Done():
		cancel()
		<-done
		return nil, context.Cause(ctx)
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, ContentLength: -1, Request: r, Body: &body{reader, func() { cancel(); <-done }},
	}, nil
}

// response is what a handler writes to.
type response struct {
	header, sent http.Header
	body         *io.PipeWriter
	status       int
	once         sync.Once
	began        chan struct{}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.began)
	})
}

func (w *response) Write(data []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(data)
}

// FlushError implements what http.ResponseController looks for.
func (w *response) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return nil
}

// body ends its handler when it is closed.
type body struct {
	*io.PipeReader

	end func()
}

func (b *body) Close() error {
	err := b.PipeReader.Close()
	b.end()
	return err
}
