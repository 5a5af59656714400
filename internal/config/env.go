package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// variable is one RECONCILER_ variable of the environment.
type variable struct{ name, value string }

func (v variable) origin() Origin { return Origin{Source: SourceEnv, Name: v.name} }

// environment holds the RECONCILER_ variables that are set, sorted by name. An empty one counts as not set:
// compose files and unit files pass those on for what nobody gave.
type environment []variable

func newEnvironment(environ []string) environment {
	var env environment
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, envPrefix) && value != "" {
			env = append(env, variable{name, value})
		}
	}
	slices.SortStableFunc(env, func(a, b variable) int { return cmp.Compare(a.name, b.name) })
	return slices.CompactFunc(env, func(a, b variable) bool { return a.name == b.name })
}

func (e environment) get(name string) string {
	for _, v := range e {
		if v.name == name {
			return v.value
		}
	}
	return ""
}

// serviceVariable matches what Kubernetes and Docker links put into every container beside a service that is
// named reconciler, or reconciler-something. They must not keep the daemon from starting.
var serviceVariable = regexp.MustCompile(
	`^RECONCILER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// applyEnv applies every variable to the config. The targets exist already; their options may name further
// variables, which are left to the drivers.
func (l *loader) applyEnv() {
	var unknown []variable
	for _, v := range l.env {
		switch {
		case v.name == envConfig, v.name == envTargets, strings.HasPrefix(v.name, envTestPrefix):
		case l.applyGlobal(v), l.applyToTarget(v):
		default:
			unknown = append(unknown, v)
		}
	}
	named := l.namedByOptions()
	for _, v := range unknown {
		if !named[v.name] && !serviceVariable.MatchString(v.name) && !l.ofTheOther(v) {
			l.problems.add(v.origin(), "", "%s", l.unknownVariableText(v.name))
		}
	}
}

// ofTheOther reports whether a variable is one of the daemon, for an agent, or the other way round: a host may have both.
func (l *loader) ofTheOther(v variable) bool {
	return slices.ContainsFunc(globals(!l.opts.Agent), func(k knob[Config]) bool { return envPrefix+envPart(k.path) == v.name })
}

func (l *loader) applyGlobal(v variable) bool {
	for _, k := range l.globals {
		if envPrefix+envPart(k.path) == v.name {
			set(l, k, l.cfg, k.path, textNode(v.value), v.origin())
			return true
		}
	}
	return false
}

// assignment is one meaning of a variable: a key or an option of one target.
type assignment struct {
	target int
	key    string // path below the target's entry
	apply  func()
}

// applyToTarget finds the one target and key that a variable means. Names lose their punctuation on the way,
// so that two targets can answer to one variable.
func (l *loader) applyToTarget(v variable) bool {
	rest, ok := strings.CutPrefix(v.name, envTargetPrefix)
	if !ok {
		return false
	}
	var found []assignment
	for i := range l.cfg.Targets {
		if key, ok := strings.CutPrefix(rest, envPart(l.cfg.Targets[i].Name)+"_"); ok && l.cfg.Targets[i].Name != "" {
			found = l.appendAssignments(found, i, key, v)
		}
	}
	if len(found) == 0 {
		return false
	}
	first := found[0]
	if i := slices.IndexFunc(found, func(a assignment) bool {
		// Two targets of one name are reported as such.
		return l.cfg.Targets[a.target].Name != l.cfg.Targets[first.target].Name
	}); i > 0 {
		l.problems.add(v.origin(), "", "can mean %s of target %q or %s of target %q; set it in the config file instead",
			first.key, l.cfg.Targets[first.target].Name, found[i].key, l.cfg.Targets[found[i].target].Name)
		return true
	}
	first.apply()
	return true
}

func (l *loader) appendAssignments(found []assignment, i int, key string, v variable) []assignment {
	t := &l.cfg.Targets[i]
	for _, k := range l.targets {
		if envPart(k.path) == key && k.path != "name" {
			apply := func() { set(l, k, t, targetPath(i, k.path), textNode(v.value), v.origin()) }
			found = append(found, assignment{i, k.path, apply})
		}
	}
	if option, ok := strings.CutPrefix(key, envOptions+"_"); ok && option != "" {
		name := strings.ToLower(option)
		apply := func() { l.setOption(i, name, optionNode(v.value), v.origin()) }
		found = append(found, assignment{i, "options." + name, apply})
	}
	if key == envOptions {
		found = append(found, assignment{i, "options", func() { l.replaceOptions(i, v) }})
	}
	return found
}

// optionNode reads a variable as JSON where it is JSON, so that numbers, lists and mappings can be given, and as a string otherwise.
func optionNode(value string) *node {
	if json.Valid([]byte(value)) {
		if n, err := parseJSON([]byte(value)); err == nil {
			return n
		}
	}
	return stringNode(position{}, value)
}

func (l *loader) replaceOptions(i int, v variable) {
	n := optionNode(v.value)
	if n.kind != kindMap {
		l.problems.add(v.origin(), targetPath(i, "options"), `must be a JSON mapping such as {"dir": "/srv/targets"}`)
		return
	}
	l.clearOptions(i)
	for _, f := range n.fields {
		l.setOption(i, f.key, f.value, v.origin())
	}
}

// unknownVariableText leaves the common prefix out of the comparison: it would make any two names look alike.
func (l *loader) unknownVariableText(name string) string {
	const what = "unknown variable"
	known := l.knownVariables()
	if near := suggest(strings.TrimPrefix(name, envPrefix), known); near != "" && len(name) <= longestSuggested {
		return fmt.Sprintf("%s; did you mean %q?", what, envPrefix+near)
	}
	page := "configuration.md"
	if l.opts.Agent {
		page = "agents.md"
	}
	return what + "; the variables are listed in docs/" + page
}

// knownVariables are the names that would have been understood, without the common prefix.
func (l *loader) knownVariables() []string {
	known := []string{strings.TrimPrefix(envConfig, envPrefix), strings.TrimPrefix(envTargets, envPrefix)}
	for _, k := range l.globals {
		known = append(known, envPart(k.path))
	}
	for _, t := range l.cfg.Targets {
		if t.Name == "" {
			continue
		}
		prefix := strings.TrimPrefix(envTargetPrefix, envPrefix) + envPart(t.Name) + "_"
		known = append(known, prefix+envOptions)
		for _, k := range l.targets {
			if k.path != "name" {
				known = append(known, prefix+envPart(k.path))
			}
		}
	}
	return known
}

// namedByOptions are the variables that options such as secret_env name, at any depth.
func (l *loader) namedByOptions() map[string]bool {
	named := map[string]bool{}
	for _, t := range l.cfg.Targets {
		collectNames(named, "", map[string]any(t.Options))
	}
	for _, t := range l.cfg.Streams.Tokens {
		named[t.Env] = true
	}
	return named
}

func collectNames(named map[string]bool, key string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			collectNames(named, k, v)
		}
	case []any:
		for _, v := range value {
			collectNames(named, key, v)
		}
	case string:
		if strings.HasSuffix(key, "_env") {
			named[value] = true
		}
	}
}

func targetPath(i int, path string) string { return fmt.Sprintf("targets[%d].%s", i, path) }
