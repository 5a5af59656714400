package watch

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of the parameter timeout.
const (
	timeoutMin = time.Second
	timeoutMax = time.Hour
)

// onlyParameters refuses parameters that are not known: a misspelt filter must not answer with everything.
func onlyParameters(r *http.Request, known ...string) error {
	for name, values := range r.URL.Query() {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return fmt.Errorf("unknown parameter %q: there are none here", name)
			}
			return fmt.Errorf("unknown parameter %q: there are %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 && name != "resource" {
			return fmt.Errorf("%s is given %d times", name, len(values))
		}
	}
	return nil
}

// parseRequest makes a watcher of the parameters.
func parseRequest(r *http.Request) (*watcher, error) {
	if err := onlyParameters(r, "watch", "since", "timeout", "resource", "prefix"); err != nil {
		return nil, err
	}
	query, w := r.URL.Query(), &watcher{}
	w.filter = newFilter(query["resource"], query.Get("prefix"))
	if slices.Contains(w.filter.resources, "") {
		return nil, errors.New("resource is empty")
	}
	if w.filter.prefix != "" && len(w.filter.resources) != 1 {
		return nil, errors.New("prefix needs exactly one resource: keys of different resources have nothing in common")
	}
	for _, text := range append([]string{w.filter.prefix}, w.filter.resources...) {
		if text != storable(text) {
			return nil, errors.New("resource and prefix must be valid UTF-8 without NUL")
		}
	}
	if text := query.Get("watch"); text != "" {
		follow, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("watch must be true or false, not %q", text)
		}
		w.follow = follow
	}
	return w, errors.Join(w.parseSince(r), w.parseTimeout(query.Get("timeout")))
}

func (w *watcher) parseSince(r *http.Request) error {
	// An EventSource that connects again has the URL of the first time, and this header.
	text := cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("since"))
	if text == "" {
		return nil
	}
	b, err := parseBookmark(text)
	if err != nil {
		return err
	}
	w.since = &b
	return nil
}

func (w *watcher) parseTimeout(text string) (err error) {
	if text == "" {
		return nil
	}
	if !w.follow {
		return errors.New("timeout needs watch=true: a snapshot ends by itself")
	}
	w.timeout, err = time.ParseDuration(text)
	if err != nil || w.timeout < timeoutMin || w.timeout > timeoutMax {
		return fmt.Errorf(`timeout must be a duration from 1s to 1h, such as "25s", not %q`, text)
	}
	return nil
}
