package options

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// envNameUsual is what may be repeated in a text: a secret that was put where its variable's name belongs
	// does not look like this.
	envNameUsual = regexp.MustCompile(`^[A-Z][A-Z0-9_]{0,63}$`)
)

// Secret is a value that no text may hold, and the label that stands for it there.
type Secret struct {
	Value string // without white space around it; empty if the option is absent or wrong
	Label string // the variable's name, or the option's path
}

// Secret reads the pair of options name_env and name_file, of which one may be given: the environment variable
// or the file that holds the secret. A source that is missing or empty is a problem.
func (r *Reader) Secret(name string, getenv func(string) string) Secret {
	inEnv, inFile := name+"_env", name+"_file"
	hasEnv, hasFile := r.Has(inEnv), r.Has(inFile)
	switch {
	case hasEnv && hasFile:
		r.Problemf(inEnv, "cannot stand beside %s.%s: give one of the two", r.path, inFile)
		return Secret{}
	case hasEnv:
		if variable := r.String(inEnv, ""); variable != "" {
			return r.variable(inEnv, variable, getenv)
		}
	case hasFile:
		if path := r.String(inFile, ""); path != "" {
			return r.file(inFile, path)
		}
	}
	return Secret{}
}

// RequiredSecret is Secret for a pair of which one must be given.
func (r *Reader) RequiredSecret(name string, getenv func(string) string) Secret {
	if !r.Has(name+"_env") && !r.Has(name+"_file") {
		r.known[name+"_file"] = struct{}{}
		r.Problemf(name+"_env", "is required: the name of the environment variable that holds it (or %s.%s_file)",
			r.path, name)
		return Secret{}
	}
	return r.Secret(name, getenv)
}

// SecretMap reads a mapping of names to environment variables, and returns the names with their secrets.
func (r *Reader) SecretMap(name string, getenv func(string) string) map[string]Secret {
	variables := r.StringMap(name)
	secrets := make(map[string]Secret, len(variables))
	for _, key := range slices.Sorted(maps.Keys(variables)) {
		secrets[key] = r.variable(name+"."+key, variables[key], getenv)
	}
	return secrets
}

// EnvList reads a list of environment variables, and returns them with their values, byte for byte. One that
// is not set is a problem.
func (r *Reader) EnvList(name string, getenv func(string) string) map[string]string {
	values := map[string]string{}
	for _, variable := range r.Strings(name) {
		if secret := r.variable(name, variable, getenv); secret.Value != "" {
			values[variable] = getenv(variable)
		}
	}
	return values
}

func (r *Reader) variable(path, variable string, getenv func(string) string) Secret {
	if !envName.MatchString(variable) {
		r.Problemf(path, "must be the name of an environment variable (letters, digits and _), not its value")
		return Secret{}
	}
	label := r.path + "." + path
	text := "the environment variable that it names is not set"
	if envNameUsual.MatchString(variable) {
		label = variable
		text = "the environment variable " + variable + " is not set"
	}
	value := strings.TrimSpace(getenv(variable))
	if value == "" {
		r.Problemf(path, "%s", text)
	}
	return Secret{Value: value, Label: label}
}

func (r *Reader) file(option, path string) Secret {
	content, err := os.ReadFile(path)
	if err != nil {
		// Only the reason: the text of the option could be the secret itself.
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err
		}
		r.Problemf(option, "the file cannot be read: %s", err)
		return Secret{}
	}
	value := strings.TrimSpace(string(content))
	if value == "" {
		r.Problemf(option, "the file is empty")
	}
	return Secret{Value: value, Label: r.path + "." + option}
}
