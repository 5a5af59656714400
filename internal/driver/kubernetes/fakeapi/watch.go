package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
)

type frame struct {
	Type   watch.EventType `json:"type"`
	Object any             `json:"object"`
}

// Cut ends all watches, as a restart or a proxy does.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	s.wakeLocked()
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, req request) {
	query := r.URL.Query()
	chosen, err := req.selector(query)
	if err != nil {
		writeError(w, err)
		return
	}
	if req.name != "" {
		http.NotFound(w, r)
		return
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	if seconds <= 0 {
		seconds = int(time.Hour / time.Second)
	}
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)

	s.mu.Lock()
	cuts := s.cuts
	frames, position, err := s.startLocked(req, chosen, query)
	for {
		written, ended := s.written, s.ended || s.cuts != cuts
		s.mu.Unlock()
		for _, f := range frames {
			_ = encoder.Encode(f)
		}
		_ = http.NewResponseController(w).Flush()
		if ended || err != nil {
			return
		}
		select {
		case <-written:
		case <-timeout.C:
			return
		case <-r.Context().Done():
			return
		}
		s.mu.Lock()
		frames, position = s.sinceLocked(req, chosen, position)
	}
}

// startLocked returns what a watch sends first, and the version after which it continues.
func (s *Server) startLocked(req request, chosen selector, query url.Values) ([]frame, uint64, error) {
	version, err := strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
	initial := query.Get("sendInitialEvents")
	if err == nil && version > 0 && initial != "true" {
		if version < s.compacted {
			expired := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, s.compacted))
			return []frame{{watch.Error, withKind(expired.Status())}}, 0, expired
		}
		frames, position := s.sinceLocked(req, chosen, version)
		return frames, position, nil
	}
	var frames []frame
	for _, object := range s.sortedLocked(req.kind.stored(), req.namespace) {
		if chosen.matches(object) && initial != "false" {
			frames = append(frames, frame{watch.Added, req.show(object)})
		}
	}
	if initial == "true" && query.Get("allowWatchBookmarks") == "true" {
		bookmark := req.kind.empty()
		bookmark.SetResourceVersion(strconv.FormatUint(s.version, 10))
		bookmark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		frames = append(frames, frame{watch.Bookmark, req.show(bookmark)})
	}
	return frames, s.version, nil
}

func withKind(status metav1.Status) metav1.Status {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return status
}

// sinceLocked returns what happened after version to the objects that the watch is for, and the version it has now seen.
func (s *Server) sinceLocked(req request, chosen selector, version uint64) ([]frame, uint64) {
	var frames []frame
	for _, e := range s.events {
		if e.version <= version || e.resource != req.kind.stored() {
			continue
		}
		before, after := chosen.matches(e.old), chosen.matches(e.object)
		switch {
		case after && before:
			frames = append(frames, frame{watch.Modified, req.show(e.object)})
		case after:
			frames = append(frames, frame{watch.Added, req.show(e.object)})
		case before:
			frames = append(frames, frame{watch.Deleted, req.show(gone(e))})
		}
	}
	return frames, max(version, s.version) // a version that a restore has lost is yet to come
}

// gone returns the last state of an object that a watch does not see any more, with the version of the write.
func gone(e event) *unstructured.Unstructured {
	last := e.old.DeepCopy()
	last.SetResourceVersion(strconv.FormatUint(e.version, 10))
	return last
}
