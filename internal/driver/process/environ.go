package process

import (
	"maps"
	"slices"
)

// inherited are the variables that every program gets: what finds programs, homes and time zones. Nothing
// here is a secret, and nothing of this product's own configuration.
var inherited = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER",
}

// Environ returns the environment of a program: the few harmless variables that everybody needs, and the
// given ones, which win.
func Environ(getenv func(string) string, given map[string]string) []string {
	all := map[string]string{}
	for _, name := range inherited {
		if value := getenv(name); value != "" {
			all[name] = value
		}
	}
	maps.Copy(all, given)
	environ := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		environ = append(environ, name+"="+all[name])
	}
	return environ
}
