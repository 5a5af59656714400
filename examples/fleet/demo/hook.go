package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

// hook is the endpoint of a target of driver webhook. It keeps what it is given in memory.
type hook struct {
	mu      sync.Mutex // guards what follows
	addr    string
	server  *http.Server // nil while it is closed
	broken  bool         // it answers 503
	refused string       // a spec with this text in it is answered with 422; "": none is
	asked   int          // requests so far
	objects map[string][]byte
	served  sync.WaitGroup
}

// message is what a webhook is sent.
type message struct {
	Action   string          `json:"action"`
	Resource string          `json:"resource"`
	Key      string          `json:"key"`
	Spec     json.RawMessage `json:"spec"`
}

// openHook starts the endpoint on a port of this machine.
func openHook(ctx context.Context) (*hook, error) {
	h := &hook{addr: "127.0.0.1:0", objects: map[string][]byte{}}
	return h, h.open(ctx)
}

// open makes it answer (again).
func (h *hook) open(ctx context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", h.addr)
	if err != nil {
		return fmt.Errorf("open the webhook: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addr, h.broken = listener.Addr().String(), false
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	h.server = server
	h.served.Go(func() { _ = server.Serve(listener) }) // it ends with close
	return nil
}

// close ends every connection; further ones are refused.
func (h *hook) close() {
	h.mu.Lock()
	server := h.server
	h.server = nil
	h.mu.Unlock()
	if server == nil {
		return
	}
	_ = server.Close() // it is gone in any case
	h.served.Wait()
}

// breakDown makes it answer 503.
func (h *hook) breakDown() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken = true
}

// refuse makes it refuse specs with a text in them; "" ends that.
func (h *hook) refuse(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = text
}

func (h *hook) url() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return "http://" + h.addr + "/objects"
}

// has returns its objects by path, and how many requests there were.
func (h *hook) has() (objects map[string][]byte, asked int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.objects), h.asked
}

// ServeHTTP takes one object.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const bodyMax = 1 << 20
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyMax))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	if h.broken {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	var m message
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if h.refused != "" && bytes.Contains(m.Spec, []byte(h.refused)) {
		http.Error(w, "this image has no signature", http.StatusUnprocessableEntity)
		return
	}
	path := objectPath(m.Resource, m.Key)
	switch m.Action {
	case "apply":
		h.objects[path] = m.Spec
	case "delete":
		delete(h.objects, path)
	default:
		http.Error(w, "unknown action", http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
