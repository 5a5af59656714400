package kubernetes

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fields of a Secret with values. The cluster moves stringData to data when it stores the object.
const (
	fieldData       = "data"
	fieldStringData = "stringData"
)

// storeSecret gives the manifest of a Secret the form in which the cluster stores it: the values of stringData move to data, where they win
// over values of the same name. A manager that applies stringData owns no field of data: the cluster would keep the keys that a row drops,
// and would not show an edit as drift. The error names fields, and no value.
func storeSecret(manifest map[string]any) error {
	data, wrong := valuesOf(manifest, fieldData, func(text string) bool {
		_, err := base64.StdEncoding.DecodeString(text)
		return err == nil
	})
	texts, more := valuesOf(manifest, fieldStringData, func(string) bool { return true })
	if wrong = append(wrong, more...); len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	delete(manifest, fieldStringData)
	if len(texts) == 0 {
		return nil
	}
	if data == nil {
		data = map[string]any{}
	}
	for name, text := range texts {
		data[name] = base64.StdEncoding.EncodeToString([]byte(text.(string))) //nolint:forcetypeassert // valuesOf has looked
	}
	manifest[fieldData] = data
	return nil
}

// valuesOf returns a map of texts, nil if the manifest has none, and what is wrong with it.
func valuesOf(manifest map[string]any, field string, valid func(text string) bool) (values map[string]any, wrong []string) {
	if manifest[field] == nil {
		return nil, nil
	}
	values, ok := manifest[field].(map[string]any)
	if !ok {
		return nil, []string{field + " must map names to texts"}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch text, ok := values[name].(string); {
		case !ok:
			wrong = append(wrong, field+"."+name+" must be text")
		case !valid(text):
			wrong = append(wrong, field+"."+name+" must be base64 (stringData takes plain text)")
		}
	}
	return values, wrong
}

// secretError is an error about a Secret whose text has no value of it. What classifies errors sees the one that it wraps.
type secretError struct {
	error

	text string
}

func (e secretError) Error() string { return e.text }
func (e secretError) Unwrap() error { return e.error }

// withheld returns an error about a Secret without what a server, a webhook or a proxy may repeat of its values: it has the reason and the
// fields in place of the message.
func withheld(err error) error {
	var busy *busyError
	if errors.As(err, &busy) {
		return &busyError{after: busy.after}
	}
	status := statusOf(err)
	if status == nil {
		return err // of the driver or of the connection
	}
	text := withoutValues(status)
	if before, _, found := strings.Cut(err.Error(), status.Message); found && status.Message != "" {
		text = before + text
	}
	return secretError{err, text}
}

// missingRight is how API servers name a right that is missing, which they do before they read a body.
var missingRight = regexp.MustCompile(`^\S+ "[^"]*" is forbidden: User "[^"]*" cannot [a-z]+ resource "[^"]*" in API group "[^"]*"` +
	`( in the namespace "[^"]*"| at the cluster scope)?`)

// mistypedField is how API servers name the first field that a kind does not have, or not with this type.
var mistypedField = regexp.MustCompile(`^failed to create typed patch object \([^)]*\): (?:errors:\s+)?\.([^\s:]+): `)

// withoutValues returns why a server refuses a request: the reason, and the fields if it names them.
func withoutValues(status *metav1.Status) string {
	if right := missingRight.FindString(status.Message); right != "" {
		return right
	}
	var fields []string
	for _, cause := range causesIn(status) {
		if cause.Field != "" {
			fields = append(fields, fmt.Sprintf("%s: %s", cause.Field, cause.Type))
		}
	}
	if m := mistypedField.FindStringSubmatch(status.Message); m != nil {
		fields = []string{m[1] + ": unknown, or of another type"}
	}
	reason := cmp.Or(string(status.Reason), fmt.Sprintf("%d %s", status.Code, http.StatusText(int(status.Code))))
	if len(fields) == 0 {
		return fmt.Sprintf("the cluster refuses it (%s); its message may have values of the Secret, and is not shown", reason)
	}
	return fmt.Sprintf("the cluster refuses it (%s): %s", reason, strings.Join(fields, ", "))
}
