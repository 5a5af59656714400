package watch

import (
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/store"
)

const (
	// watchersMost bounds the watchers of a process.
	watchersMost = 20_000
	// grantWatchersMost bounds those of one token, so that a client that has gone mad leaves room for others.
	grantWatchersMost = 15_000
	// objectMost is what an object takes at most while it is sent: its spec, its names and a buffer.
	objectMost = desired.SpecMost + 4<<10 + bufferBytes
	// answerTimeout is how long a request may wait for the database before it is answered with an error.
	answerTimeout = 10 * time.Second
	// protocol is the version of the protocol of docs/streams.md. It grows when a client or server of before would misunderstand the other.
	protocol       = 1
	protocolHeader = "Reconciler-Protocol"
)

//go:embed openapi.json
var openAPI []byte

// Handler serves the streams of a hub.
type Handler struct {
	hub          *Hub
	access       *Access
	installation string
	draining     <-chan struct{}
	configured   []string
	mux          *http.ServeMux
	watchers     atomic.Int64
	reports      *intake
}

// NewHandler makes a handler. installation is the id that clients see, and configured are the targets that will have a stream even
// if they have none yet. All responses end when draining is closed.
func NewHandler(hub *Hub, access *Access, installation string, configured []string, draining <-chan struct{}) *Handler {
	h := &Handler{hub: hub, access: access, installation: installation, configured: configured, draining: draining, mux: http.NewServeMux(), reports: newIntake()}
	h.route("/v1/targets", h.targets)
	h.route("/v1/targets/{target}/objects", h.objects)
	h.route("/v1/targets/{target}/objects/{resource}/{key}", h.object)
	h.mux.HandleFunc("POST /v1/targets/{target}/observations", h.observations)
	h.route("/v1/openapi.json", func(w http.ResponseWriter, _ *http.Request, _ *grant) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI)
	})
	h.route("/", func(w http.ResponseWriter, r *http.Request, _ *grant) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("there is nothing at %s: /v1/openapi.json describes what is served", r.URL.Path))
	})
	return h
}

// route serves a path to those who may read it. The check comes before anything is looked up: the answer is the same whether a
// target exists or not.
func (h *Handler) route(path string, serve func(http.ResponseWriter, *http.Request, *grant)) {
	h.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		g := h.authenticate(w, r)
		if g == nil {
			return
		}
		if target := r.PathValue("target"); target != "" && !g.mayRead(target) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("token %q may not read target %q", g.name, target))
			return
		}
		serve(w, r, g)
	})
}

// authenticate returns what the token of a request may do. Without a valid one it answers, and returns nil.
func (h *Handler) authenticate(w http.ResponseWriter, r *http.Request) *grant {
	g := h.access.authenticate(r)
	if g == nil {
		w.Header().Set("WWW-Authenticate", `Bearer realm="reconciler"`)
		refuse(w, http.StatusUnauthorized, "a valid token is needed: Authorization: Bearer TOKEN")
	}
	return g
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Reconciler-Installation", h.installation)
	w.Header().Set(protocolHeader, strconv.Itoa(protocol))
	if err := checkProtocol(r); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	h.mux.ServeHTTP(w, r)
}

// checkProtocol refuses a client that speaks a newer protocol. One that names none speaks the first.
func checkProtocol(r *http.Request) error {
	text := r.Header.Get(protocolHeader)
	if text == "" {
		return nil
	}
	spoken, err := strconv.Atoi(text)
	switch {
	case err != nil || spoken < 1:
		return fmt.Errorf("%s must be a whole number from 1 on, not %s", protocolHeader, quoted(text))
	case spoken > protocol:
		return fmt.Errorf("the client speaks protocol %d, and this server %d: upgrade the server", spoken, protocol)
	}
	return nil
}

// refuse answers with an error: {"error": "..."}.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { //nolint:errchkjson // the client has gone
		Error string `json:"error"`
	}{text})
}

// fail answers with what kept a request from being served.
func (h *Handler) fail(w http.ResponseWriter, target string, err error) {
	switch {
	case errors.Is(err, ErrUnknown) && slices.Contains(h.configured, target):
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("target %q has no stream yet: its owner has not started", target))
		return
	case errors.Is(err, ErrUnknown):
		refuse(w, http.StatusNotFound, fmt.Sprintf("target %q has no stream: it needs `driver: stream` in the config of a running process", target))
		return
	}
	refuse(w, http.StatusServiceUnavailable, "the database does not answer; try again")
}

func (h *Handler) targets(w http.ResponseWriter, r *http.Request, g *grant) {
	if err := onlyParameters(r); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	var names []string
	err := h.hub.ask(ctx, func(q *store.Queries) (err error) {
		names, err = q.StreamNames(ctx)
		return err
	})
	if err != nil {
		h.fail(w, "", err)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !g.mayRead(name) })
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { //nolint:errchkjson // the client has gone
		Targets []string `json:"targets"`
	}{append([]string{}, names...)})
}

func (h *Handler) object(w http.ResponseWriter, r *http.Request, g *grant) {
	if err := onlyParameters(r); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	target, resource, key := r.PathValue("target"), r.PathValue("resource"), r.PathValue("key")
	if _, refused := g.limit([]string{resource}); refused != "" {
		refuseResource(w, g, refused)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	loan := h.hub.pages.Take(objectMost)
	defer loan.Return()
	select {
	case <-loan.Ready:
	case <-ctx.Done():
		refuse(w, http.StatusServiceUnavailable, "too much is being sent to other clients; try again")
		return
	}
	var row store.StreamObjectRow
	err := h.hub.ask(ctx, func(q *store.Queries) error {
		id, err := q.StreamFind(ctx, storable(target))
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrUnknown
		}
		if err != nil {
			return err
		}
		row, err = q.StreamObject(ctx, store.StreamObjectParams{TargetID: id, Resource: storable(resource), Key: storable(key)})
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		refuse(w, http.StatusNotFound, fmt.Sprintf("target %q has no published object %s/%s", target, resource, key))
		return
	}
	if err != nil {
		h.fail(w, target, err)
		return
	}
	etag := `"` + hex.EncodeToString(row.Hash) + `"`
	w.Header().Set("ETag", etag)
	if slices.Contains(strings.Split(strings.ReplaceAll(r.Header.Get("If-None-Match"), " ", ""), ","), etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	loan.Set(int64(len(row.Spec)) + bufferBytes)
	out := output{w: w, writing: newWriting(w)}
	out.writing.holds.Store(true)
	defer h.hub.writes(out.writing, target)()
	c := change{resource: resource, key: key, version: row.Version, revision: row.Revision, spec: row.Spec, hash: row.Hash}
	_ = out.sendChange(c) // else the client has gone
}

func refuseResource(w http.ResponseWriter, g *grant, resource string) {
	refuse(w, http.StatusForbidden, fmt.Sprintf("token %q may not read resource %q", g.name, resource))
}

// storable replaces what no text in the database can have, so that it is not found.
func storable(name string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(name, "\uFFFD"), "\x00", "\uFFFD")
}

func (h *Handler) objects(w http.ResponseWriter, r *http.Request, g *grant) {
	watching, err := parseRequest(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	resources, refused := g.limit(watching.filter.resources)
	if refused != "" {
		refuseResource(w, g, refused)
		return
	}
	watching.grant, watching.filter = g, newFilter(resources, watching.filter.prefix)
	defer g.watchers.Add(-1)
	if g.watchers.Add(1) > grantWatchersMost {
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("token %q has %d watchers at this process, which is the limit of a token", g.name, grantWatchersMost))
		return
	}
	if h.watchers.Add(1) > watchersMost {
		h.watchers.Add(-1)
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("this process has %d watchers, which is its limit: ask another one", watchersMost))
		return
	}
	defer h.watchers.Add(-1)
	name := r.PathValue("target")
	watching.hub, watching.stop = h.hub, h.draining
	watching.target, err = h.join(r.Context(), name, watching)
	if err != nil {
		h.fail(w, name, err)
		return
	}
	defer h.hub.leave(watching.target, watching)
	if s, _, _, _ := watching.target.look(watching.group, 0, 0); !s.complete && !watching.follow {
		refuse(w, http.StatusServiceUnavailable, fmt.Sprintf("target %q is not complete: its first full sync is under way", name))
		return
	}
	watching.out = newOutput(w, r, watching.follow)
	defer h.hub.writes(watching.out.writing, watching.target.name)()
	if r.Method == http.MethodHead {
		return
	}
	if watching.run(r.Context()) == nil {
		_ = watching.out.close() // else the client has gone
	}
}

// join waits for the stream for so long at most, and not for the end of the request.
func (h *Handler) join(ctx context.Context, name string, w *watcher) (*target, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return h.hub.join(ctx, storable(name), w)
}
