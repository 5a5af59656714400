package watch

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
)

// The reasons of frames.
const (
	resetExpired  = "expired"  // tombstones after the bookmark may be gone
	resetRestored = "restored" // the database was restored, or failed over with a loss, though nobody may have noticed it yet
	resetScope    = "scope"    // the bookmark is one of another filter
	resetUnknown  = "unknown"  // the bookmark is one of another stream

	closedReleased = "released" // the stream is gone; what it had published is not
	closedRevoked  = "revoked"  // the token is no longer valid
	closedDraining = "draining" // the process stops
	closedAge      = "age"      // so that watchers spread over processes
	closedTimeout  = "timeout"  // as the client asked

	waitingIncomplete = "incomplete" // the first full sync is under way
	waitingDatabase   = "database"   // the database does not answer
	waitingQueue      = "queue"      // other snapshots come first
)

// frame is a change, encoded once for all watchers.
type frame struct {
	version int64
	data    []byte // a JSON object, without a newline
}

// change is a version of an object.
type change struct {
	resource, key     string
	version, revision int64
	spec              string // "": deleted
	hash              []byte
}

// appendTo encodes the change. The spec is as PostgreSQL prints it, so that clients can compute its hash.
func (c change) appendTo(data []byte) []byte {
	data = slices.Grow(data, 160+len(c.resource)+len(c.key)+len(c.spec))
	return append(append(c.appendHead(data), c.spec...), '}')
}

// appendHead encodes the change up to its spec, which "}" follows.
func (c change) appendHead(data []byte) []byte {
	if c.spec == "" {
		data = append(data, `{"type":"delete"`...)
	} else {
		data = append(data, `{"type":"upsert"`...)
	}
	data = appendText(data, "resource", c.resource)
	data = appendText(data, "key", c.key)
	data = appendNumber(data, "version", c.version)
	if c.spec != "" {
		data = appendNumber(data, "revision", c.revision)
		data = append(hex.AppendEncode(append(data, `,"hash":"`...), c.hash), '"')
		data = append(data, `,"spec":`...)
	}
	return data
}

func appendText(data []byte, name, value string) []byte {
	data = append(append(append(data, `,"`...), name...), `":`...)
	if plain(value) {
		return append(append(append(data, '"'), value...), '"')
	}
	text, _ := json.Marshal(value) //nolint:errchkjson // of a string, which cannot fail
	return append(data, text...)
}

// plain reports whether a text is the same in JSON.
func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func appendNumber(data []byte, name string, value int64) []byte {
	return strconv.AppendInt(append(append(append(data, `,"`...), name...), `":`...), value, 10)
}

func encodeKeep(resource, key, reason string) []byte {
	return append(appendText(appendText(appendText([]byte(`{"type":"keep"`), "resource", resource), "key", key), "reason", reason), '}')
}

// controls are the commands for the clients of a stream: whether it is paused, and how often each of the others was given.
type controls struct {
	Paused  bool  `json:"paused,omitempty"`
	Resync  int64 `json:"resync,omitempty"`
	Retry   int64 `json:"retry,omitempty"`
	Approve int64 `json:"approve,omitempty"`
	pauses  int64 // how often pause and resume were given
}

// newer reports whether c was not read before other. Each command counts, so the sum grows until a restore.
func (c controls) newer(other controls) bool {
	return c.Resync+c.Retry+c.Approve+c.pauses >= other.Resync+other.Retry+other.Approve+other.pauses
}

// encodePlace is a checkpoint, or the end of a snapshot. It leaves out version, revision and controls inside a snapshot, where nothing can be
// concluded from them.
func encodePlace(kind string, b bookmark, text string, reached int64, c controls) []byte {
	data := appendText([]byte(`{"type":"`+kind+`"`), "bookmark", text)
	if !b.paging {
		data = appendNumber(appendNumber(data, "version", b.version), "revision", reached)
		text, _ := json.Marshal(c) //nolint:errchkjson // of numbers, which cannot fail
		data = append(append(data, `,"controls":`...), text...)
	}
	return append(data, '}')
}

// encodeNotice is a frame of a type and a reason: reset, waiting or closed.
func encodeNotice(kind, reason string) []byte {
	return append(appendText([]byte(`{"type":"`+kind+`"`), "reason", reason), '}')
}
