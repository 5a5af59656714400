package process

import (
	"os"
	"regexp"

	"github.com/pgreconciler/reconciler/internal/driver"
	"github.com/pgreconciler/reconciler/internal/driver/options"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ReadArgs reads a program and its arguments: a list whose first item is looked up now, so that a missing
// program is a problem of the config and not of every object. It returns nil where the option is absent or wrong.
func ReadArgs(r *options.Reader, name string) []string {
	if !r.Has(name) {
		return nil
	}
	args := r.Strings(name)
	if args == nil {
		return nil // a problem already
	}
	if len(args) == 0 || args[0] == "" {
		r.Problemf(name, `must be a list that begins with a program, such as ["systemctl", "reload", "nginx"]`)
		return nil
	}
	path, err := Look(args[0])
	if err != nil {
		r.Problemf(name, "the program %s cannot be run: %s", args[0], err)
		return nil
	}
	return append([]string{path}, args[1:]...)
}

// ReadSurroundings reads where and with which environment a program runs: the options dir, env (names with
// values) and env_from (variables of this process to hand down). Values from env_from are taken for secrets:
// the Scrubber hides them.
func ReadSurroundings(r *options.Reader, getenv func(string) string) (dir string, environ []string, s driver.Scrubber) {
	dir = r.String("dir", "")
	if info, err := os.Stat(dir); dir != "" && (err != nil || !info.IsDir()) {
		r.Problemf("dir", "there is no directory %s", dir)
	}
	given := r.StringMap("env")
	for name := range given {
		if !variableName.MatchString(name) {
			r.Problemf("env", "%q cannot be the name of an environment variable (letters, digits and _)", name)
		}
	}
	if given == nil {
		given = map[string]string{}
	}
	labels := map[string]string{}
	for name, value := range r.EnvList("env_from", getenv) {
		if _, twice := given[name]; twice {
			r.Problemf("env_from", "%s stands in env too: give one of the two", name)
		}
		given[name], labels[value] = value, name
	}
	return dir, Environ(getenv, given), driver.NewScrubber(labels)
}
