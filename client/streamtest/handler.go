package streamtest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/pgreconciler/reconciler/client"
)

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down, name, protocol := s.down, s.name, s.protocol
	s.mu.Unlock()
	w.Header().Set("Reconciler-Installation", name)
	w.Header().Set("Reconciler-Protocol", strconv.Itoa(protocol))
	if asked, err := strconv.Atoi(r.Header.Get("Reconciler-Protocol")); err == nil && asked > protocol {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("the client speaks protocol %d, and this server %d: upgrade the server", asked, protocol))
		return
	}
	if down {
		refuse(w, http.StatusServiceUnavailable, "the server is down")
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/targets", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string][]string{"targets": {s.target}})
	})
	mux.HandleFunc("GET /v1/targets/{target}/objects", s.known(s.watch))
	mux.HandleFunc("GET /v1/targets/{target}/objects/{resource}/{key}", s.known(s.object))
	mux.HandleFunc("POST /v1/targets/{target}/observations", s.known(s.report))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "there is nothing at "+r.URL.Path)
	})
	mux.ServeHTTP(w, r)
}

// known serves the target of the server, and no other one.
func (s *Server) known(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if target := r.PathValue("target"); target != s.target {
			refuse(w, http.StatusNotFound, fmt.Sprintf("target %q has no stream", target))
			return
		}
		serve(w, r)
	}
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	answer(w, map[string]string{"error": text})
}

func answer(w http.ResponseWriter, value any) {
	_ = json.NewEncoder(w).Encode(value) //nolint:errchkjson // the client has gone
}

func (s *Server) object(w http.ResponseWriter, r *http.Request) {
	at := id{r.PathValue("resource"), r.PathValue("key")}
	s.mu.Lock()
	o := s.objects[at]
	s.mu.Unlock()
	if o == nil || o.spec == nil {
		refuse(w, http.StatusNotFound, fmt.Sprintf("target %q has no %s %q", s.target, at.resource, at.key))
		return
	}
	f := o.frame()
	w.Header().Set("ETag", `"`+f.Hash+`"`)
	answer(w, f.Object)
}

// head is the first line of a report.
type head struct {
	Session  string      `json:"session"`
	Seq      uint64      `json:"seq"`
	Complete bool        `json:"complete"`
	Client   client.Info `json:"client"`
}

// report takes observations. A report that was sent again counts once.
func (s *Server) report(w http.ResponseWriter, r *http.Request) {
	var head head
	var observations []client.Observation
	ended := false
	lines := bufio.NewScanner(r.Body)
	lines.Buffer(nil, 16<<20)
	for n := 0; lines.Scan(); n++ {
		var line struct {
			client.Observation

			End bool `json:"end"`
		}
		err := json.Unmarshal(lines.Bytes(), &line)
		if n == 0 {
			err = json.Unmarshal(lines.Bytes(), &head)
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("line %d: %v", n+1, err))
			return
		}
		ended = line.End
		if n > 0 && !ended {
			observations = append(observations, line.Observation)
		}
	}
	if head.Session == "" || head.Seq == 0 || !ended {
		refuse(w, http.StatusBadRequest, "a report has a session and a number, and ends with {\"end\":true}")
		return
	}
	s.take(w, head, observations)
}

func (s *Server) take(w http.ResponseWriter, head head, observations []client.Observation) {
	s.mu.Lock()
	refused, newest := s.refused, s.sessions[head.Session]
	s.mu.Unlock()
	if refused != 0 {
		refuse(w, refused, "no reports")
		return
	}
	if newest > head.Seq {
		answer(w, map[string]int{"accepted": 0, "ignored": len(observations)})
		return
	}
	s.change(func() { // once more for a report that is sent again
		s.sessions[head.Session], s.info = head.Seq, head.Client
		if head.Complete {
			clear(s.observed)
		}
		for _, o := range observations {
			s.observed[id{o.Resource, o.Key}] = o
		}
	})
	answer(w, map[string]int{"accepted": len(observations), "ignored": 0})
}

// query is what a request for objects asks for.
type query struct {
	resources []string
	prefix    string
	since     string
	at        bookmark // since, decoded
	watch     bool
	timeout   time.Duration // 0: none
}

func parse(r *http.Request) (q query, err error) {
	values := r.URL.Query()
	for name := range values {
		if !slices.Contains([]string{"resource", "prefix", "since", "watch", "timeout"}, name) {
			return q, fmt.Errorf("there is no parameter %q", name)
		}
	}
	q = query{resources: values["resource"], prefix: values.Get("prefix"), since: values.Get("since"), watch: values.Get("watch") == "true"}
	slices.Sort(q.resources)
	if q.prefix != "" && len(q.resources) != 1 {
		return q, errors.New("prefix needs exactly one resource")
	}
	if q.since != "" {
		if q.at, err = parseBookmark(q.since); err != nil {
			return q, err
		}
	}
	if text := values.Get("timeout"); text != "" {
		if q.timeout, err = time.ParseDuration(text); err != nil || q.timeout < time.Second || q.timeout > time.Hour {
			return q, fmt.Errorf("timeout must be 1s to 1h, not %q", text)
		}
	}
	return q, nil
}
