package driver

import (
	"context"
	"iter"
	"strings"
)

// Bounds of what a Differ returns.
const (
	// ChangesMost is how many changes of one object a driver returns. The last one stands for the rest, in its Note.
	ChangesMost = 500
	// ChangeBytesMost is how many bytes From and To have at most. A longer text ends with "...", and is no JSON then.
	ChangeBytesMost = 1000
)

// Change is one thing that a call would change in a target, or why the call would fail.
type Change struct {
	// Object names what changes, where a target makes several things of an object: "Deployment.apps web in shop".
	Object string `json:"object,omitempty"`
	// Field is the path of a field; "" stands for the whole object, which is created (From is "") or deleted (To is "").
	Field string `json:"field,omitempty"`
	From  string `json:"from,omitempty"` // the value that the target has, as JSON; "": it has none
	To    string `json:"to,omitempty"`   // the value after the call, as JSON; "": none
	// Note is a sentence, such as why the target would refuse the change. From and To may be empty then.
	Note string `json:"note,omitempty"`
}

// String returns the change in one line.
func (c Change) String() string {
	what := strings.TrimSpace(c.Object + " " + c.Field)
	if what != "" {
		what += ": "
	}
	switch {
	case c.Note != "":
		return what + c.Note
	case c.Field == "" && c.From == "":
		return what + "created: " + c.To
	case c.Field == "" && c.To == "":
		return what + "deleted: " + c.From
	case c.From == "":
		return what + "added: " + c.To
	case c.To == "":
		return what + "removed: " + c.From
	}
	return what + c.From + " -> " + c.To
}

// Differ is a driver that can say what a call would change in its target as it is now. It changes nothing, remembers nothing, and shows no
// values of secrets. What the target or the driver would refuse is a Change with a Note. An error means that it is not known.
type Differ interface {
	// Diff returns what Apply would change; none if the target has the object as it should be.
	Diff(ctx context.Context, obj Object) ([]Change, error)
	// DiffDelete returns what Delete would remove; none if it is absent.
	DiffDelete(ctx context.Context, ref Ref) ([]Change, error)
}

// Permitter is a driver that can say which rights it needs in its target.
type Permitter interface {
	// Permissions returns the least rights that an account needs for these objects, as text for the target's own tools, and notes for the
	// reader. An object without a Spec has only its memory. An account that cannot be one is Problems; an error of objects is returned as it is.
	Permissions(ctx context.Context, account string, objects iter.Seq2[Object, error]) (text []byte, notes []string, err error)
}
