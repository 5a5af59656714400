package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// hook is the endpoint of a target of driver webhook. It keeps in memory what it is given.
type hook struct {
	addr   string
	server *http.Server

	mu      sync.Mutex // guards what follows
	refused string     // a spec with this text in it is answered with 422; "": none is
	objects map[string][]byte
}

// message is the body of a request to a webhook.
type message struct {
	Action   string          `json:"action"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Spec     json.RawMessage `json:"spec"`
}

// newHook opens an endpoint on a port of this machine.
func newHook(ctx context.Context) (*hook, error) {
	h := &hook{addr: "127.0.0.1:0", objects: map[string][]byte{}}
	return h, h.open(ctx)
}

// open starts the endpoint, for the first time or after close.
func (h *hook) open(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", h.addr)
	if err != nil {
		return fmt.Errorf("open the webhook: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	h.addr, h.server = listener.Addr().String(), server
	go func() { _ = server.Serve(listener) }() // it ends with close
	return nil
}

// close ends every connection; further ones are refused.
func (h *hook) close() {
	if h.server != nil {
		_ = h.server.Close() // it is gone in any case
	}
}

// refuse makes it refuse specs with a text in them; "" ends that.
func (h *hook) refuse(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = text
}

// has returns its objects by path.
func (h *hook) has() map[string][]byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.objects)
}

// ServeHTTP takes one object.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	path := objectPath(m.Resource, m.Key)
	switch {
	case h.refused != "" && bytes.Contains(m.Spec, []byte(h.refused)):
		http.Error(w, "this image has no signature", http.StatusUnprocessableEntity)
	case m.Action == "apply":
		h.objects[path] = m.Spec
	case m.Action == "delete":
		delete(h.objects, path)
	default:
		http.Error(w, "unknown action", http.StatusBadRequest)
	}
}
