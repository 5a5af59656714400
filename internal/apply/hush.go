package apply

import (
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	// hushFor is how long a line of the log stands for all others of its cause.
	hushFor = time.Minute
	// hushMost bounds the causes that are told apart.
	hushMost = 100
)

// varies is what differs between errors of one cause: numbers, and what is quoted.
var varies = regexp.MustCompile(`\d+|"[^"]*"|'[^']*'|\x60[^\x60]*\x60`)

// hush lets one line of the log for each cause and minute through. A target that refuses every object is one fact.
type hush struct {
	mu     sync.Mutex // guards causes
	causes map[string]*hushed
}

type hushed struct {
	until time.Time
	more  int // lines that were left out since
}

// due reports whether a line about an error is to be written, and how many of its cause were left out since the last one.
func (h *hush) due(now time.Time, key, text string) (more int, due bool) {
	if key != "" {
		text = strings.ReplaceAll(text, key, "*")
	}
	cause := varies.ReplaceAllString(text, "*")
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.causes[cause]
	if known == nil && len(h.causes) >= hushMost {
		h.forgetLocked(now)
		if len(h.causes) >= hushMost {
			cause = "" // the others share one line
			known = h.causes[cause]
		}
	}
	switch {
	case known == nil:
		known = &hushed{}
		if h.causes == nil {
			h.causes = map[string]*hushed{}
		}
		h.causes[cause] = known
	case now.Before(known.until):
		known.more++
		return 0, false
	}
	more, known.more, known.until = known.more, 0, now.Add(hushFor)
	return more, true
}

// forgetLocked drops causes of which no line has been left out for a while.
func (h *hush) forgetLocked(now time.Time) {
	for cause, known := range h.causes {
		if !now.Before(known.until) && known.more == 0 {
			delete(h.causes, cause)
		}
	}
}
