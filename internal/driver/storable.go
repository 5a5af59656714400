package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Storable returns an error if one of the object's names cannot be stored by PostgreSQL, for drivers whose target is a table.
func Storable(ref Ref) error {
	for _, part := range []string{ref.Target, ref.Resource, ref.Key} {
		if strings.ContainsRune(part, 0) || !utf8.ValidString(part) {
			return fmt.Errorf("the name %q cannot be stored by PostgreSQL: it holds a NUL or is not valid UTF-8", Snippet([]byte(part), 100))
		}
	}
	return nil
}
