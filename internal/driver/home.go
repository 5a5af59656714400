package driver

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
)

// Home is the installation on whose behalf a target is called. Two are the same if they are equal: a dump that is loaded into another
// database or server has the same ID, and the installation that it was made of may still be at work.
type Home struct {
	Database string `json:"database"`        // its name
	System   string `json:"system"`          // identifier of the PostgreSQL system; it stays when the database is made anew
	ID       string `json:"id"`              // of the reconciler's schema; it goes with a dump
	Agent    bool   `json:"agent,omitempty"` // an agent calls, which follows a stream of the installation
}

// String returns the text that streams name the installation by: clients compare it, and ParseHome reads it.
func (h Home) String() string {
	return strings.Join([]string{url.PathEscape(h.ID), url.PathEscape(h.System), url.PathEscape(h.Database)}, "/")
}

// ParseHome is the inverse of String. Parts that are missing are empty.
func ParseHome(text string) Home {
	parts := [3]string{}
	for i, part := range strings.SplitN(text, "/", len(parts)) {
		parts[i] = part
		if plain, err := url.PathUnescape(part); err == nil {
			parts[i] = plain
		}
	}
	return Home{ID: parts[0], System: parts[1], Database: parts[2]}
}

// Owner is the target that a place outside belongs to. A driver that can keep it leaves Mark there, and calls nothing where Check fails.
type Owner struct {
	Target string `json:"target"`
	Home
}

// String names the owner for people.
func (o Owner) String() string {
	agent := ""
	if o.Agent {
		agent = "an agent of "
	}
	return fmt.Sprintf("target %s of %sdatabase %s (installation %s, system %s)", Snippet([]byte(o.Target), 100), agent,
		Snippet([]byte(o.Database), 100), Snippet([]byte(o.ID), 40), Snippet([]byte(o.System), 40))
}

// Mark returns the text to leave at the place.
func (o Owner) Mark() string {
	text, _ := json.Marshal(o) //nolint:errchkjson // of texts, which cannot fail
	return string(text)
}

// Check returns an error unless a mark is this owner's. The error says whose the place is, and continues "the directory ...": its
// caller adds how a person hands the place over. No other act moves a mark.
func (o Owner) Check(mark []byte) error {
	var found Owner
	if err := json.Unmarshal(mark, &found); err != nil {
		return fmt.Errorf("may be another target's: %w", err)
	}
	if found != o {
		return fmt.Errorf("belongs to %s, not to %s", found, o)
	}
	return nil
}
