package watch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pgreconciler/reconciler/internal/metrics"
)

const (
	// messageBytes is where messages are cut. A larger status is refused, and so is one whose values are nested deeper.
	messageBytes = 1000
	statusBytes  = 16 << 10
	statusDepth  = 32
)

// observation is a line of a report: what a client has seen of an object, or the end.
type observation struct {
	Resource string          `json:"resource"`
	Key      *string         `json:"key"`
	Version  int64           `json:"version"`
	State    string          `json:"state"`
	Message  string          `json:"message"`
	Healthy  *bool           `json:"healthy"`
	Status   json.RawMessage `json:"status"`
	End      *bool           `json:"end"`
}

// check refuses what is no observation, and makes the status one that PostgreSQL can store.
func (o *observation) check() (err error) {
	switch {
	case o.Resource == "":
		return errors.New("resource is missing")
	case o.Key == nil:
		return errors.New("key is missing")
	case o.Version < 1:
		return errors.New("version must be the version of a frame, a whole number from 1 on")
	case !slices.Contains(metrics.ObservedStates, o.State):
		return fmt.Errorf("state must be one of %s, not %s", strings.Join(metrics.ObservedStates, ", "), quoted(o.State))
	case len(o.Status) > statusBytes:
		return tooLarge("status has %d bytes, and at most %d are stored", len(o.Status), statusBytes)
	}
	o.Status, err = storableStatus(o.Status)
	return err
}

// storableStatus returns a status as PostgreSQL can store it, empty for none.
func storableStatus(status json.RawMessage) (json.RawMessage, error) {
	if len(status) == 0 || string(status) == "null" {
		return nil, nil
	}
	var value map[string]any
	in := json.NewDecoder(bytes.NewReader(status))
	in.UseNumber()
	if err := in.Decode(&value); err != nil {
		return nil, errors.New("status must be a JSON object")
	}
	if err := checkValue(value, 1); err != nil {
		return nil, fmt.Errorf("status %w", err)
	}
	return json.Marshal(value) // half of a surrogate pair has become U+FFFD
}

// checkValue refuses what jsonb cannot hold, or what is printed as a text far longer than it was.
func checkValue(value any, depth int) error {
	if depth > statusDepth {
		return fmt.Errorf("is nested deeper than %d levels", statusDepth)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if err := errors.Join(checkValue(name, depth), checkValue(inner, depth+1)); err != nil {
				return err
			}
		}
	case []any:
		for _, inner := range v {
			if err := checkValue(inner, depth+1); err != nil {
				return err
			}
		}
	case string:
		if strings.ContainsRune(v, 0) {
			return errors.New(`holds \u0000, which PostgreSQL cannot store`)
		}
	case json.Number:
		if f, err := strconv.ParseFloat(v.String(), 64); err != nil || f == 0 && tiny(v.String()) {
			return errors.New("holds a number that is beyond double precision")
		}
	}
	return nil
}

// tiny reports whether a number that became 0 is none.
func tiny(number string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(number), "e")
	return strings.ContainsAny(mantissa, "123456789")
}

// decodeLine takes a line of JSON apart, which has no other fields than those of into.
func decodeLine(line []byte, into any) error {
	in := json.NewDecoder(bytes.NewReader(line))
	in.DisallowUnknownFields()
	err := in.Decode(into)
	wrong, isWrong := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case isWrong && wrong.Field == "":
		return fmt.Errorf("must be a JSON object, not %s", wrong.Value)
	case isWrong:
		return fmt.Errorf("%s must be %s, not %s", wrong.Field, kindName(wrong.Type.Kind().String()), wrong.Value)
	case err != nil:
		return fmt.Errorf("is not what a report has: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := in.Token(); !errors.Is(err, io.EOF) {
		return errors.New("holds more than one JSON value")
	}
	return nil
}

// kindName is a kind of Go in words of JSON.
func kindName(kind string) string {
	switch kind {
	case "string":
		return "a text"
	case "bool":
		return "true or false"
	case "int64":
		return "a whole number"
	default:
		return "an object"
	}
}

// cut shortens a text to so many bytes, at the end of a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// quoted is a text of a client in an error, shortened.
func quoted(text string) string { return strconv.Quote(cut(text, 100)) }
