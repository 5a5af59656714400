package compare

import (
	"fmt"
	"regexp"
	"strings"
)

// encode turns a key into a file's name, as the documentation of the file driver has it: letters, digits, '.', '_' and
// '-' stand for themselves, but for '.' and '-' at the beginning; every other byte becomes %XX. Keys of more
// than 200 bytes, which would become directories, are not in this example.
func encode(key string) string {
	name := ordinary.ReplaceAllStringFunc(key, percent)
	if name == "" {
		return "%"
	}
	if name[0] == '.' || name[0] == '-' {
		name = percent(name[:1]) + name[1:]
	}
	return name
}

// ordinary matches a character that does not stand for itself.
var ordinary = regexp.MustCompile(`[^A-Za-z0-9._-]`)

func percent(character string) string {
	var escaped strings.Builder
	for _, b := range []byte(character) {
		_, _ = fmt.Fprintf(&escaped, "%%%02X", b)
	}
	return escaped.String()
}
