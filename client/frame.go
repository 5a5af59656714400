package client

import "encoding/json"

// FrameType is what a frame tells. Ignore types that you do not know.
type FrameType string

// The types of frames.
const (
	// Upsert has an Object that is wanted like this. Ignore it unless its version is above yours.
	Upsert FrameType = "upsert"
	// Delete has Resource, Key and Version of an object that is wanted no more. It may be one that you never had.
	Delete FrameType = "delete"
	// Keep has Resource and Key of an object that a row wants and that is not published, with the Reason: leave what you have.
	Keep FrameType = "keep"
	// EndOfSnapshot: what was not named since the start or the last Reset does not exist. Act from here on. Version is the newest one.
	EndOfSnapshot FrameType = "end_of_snapshot"
	// Checkpoint: every change up to Revision was sent, or is held, blocked or failing, and every version up to Version. Inside a
	// snapshot both are 0.
	Checkpoint FrameType = "checkpoint"
	// Reset: forget what was named and the versions of your objects, and keep the objects until EndOfSnapshot. A snapshot
	// follows. The Reason is one of the server's, or "cut" for a snapshot that was cut before its first bookmark.
	Reset FrameType = "reset"
	// Waiting: alive, with nothing to send. The Reason is one of the server's, or why there is no connection.
	Waiting FrameType = "waiting"

	// closed ends a response; Watch goes on, or returns an error.
	closed FrameType = "closed"
)

// Object is an object of a target.
type Object struct {
	Resource string `json:"resource,omitempty"`
	Key      string `json:"key,omitempty"`
	Version  int64  `json:"version,omitempty"`  // grows within a target, with gaps
	Revision int64  `json:"revision,omitempty"` // of the rows that it was made from
	Hash     string `json:"hash,omitempty"`     // the first 16 bytes of the spec's SHA-256, in hexadecimal
	// Spec is the text of the spec as PostgreSQL prints it. It is nil for a deleted object.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// Frame is one element of a stream. Which fields it has depends on its type.
type Frame struct {
	Type FrameType `json:"type"`
	Object
	// Bookmark is where the stream can be resumed. Store it with the state that goes with it.
	Bookmark string `json:"bookmark,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Controls are those of the target. EndOfSnapshot has them, and Checkpoint outside of a snapshot.
	Controls *Controls `json:"controls,omitempty"`
}
