package config

import "strings"

// knob is one key of the config, in all its forms. T is Config or Target.
type knob[T any] struct {
	path string // below the config or the target's entry, such as "log.level"
	help string
	// typ and bounds are for the documentation.
	typ, bounds string
	// def is the default as text.
	def  string
	init func(*T)
	set  func(*T, *node) error
	get  func(*T) string
}

// key describes a field of T: where it is, its default, and how its text is understood.
func key[T, V any](path string, field func(*T) *V, def V, p codec[V], help string) knob[T] {
	return knob[T]{
		path: path, help: help, typ: p.typ, bounds: p.bounds, def: p.format(def),
		init: func(t *T) { *field(t) = def },
		set: func(t *T, n *node) error {
			v, err := p.parse(n)
			if err == nil {
				*field(t) = v
			}
			return err
		},
		get: func(t *T) string { return p.format(*field(t)) },
	}
}

// withDefault replaces the default's text, for defaults that are more than a value.
func (k knob[T]) withDefault(text string) knob[T] {
	k.def = text
	return k
}

const (
	envPrefix       = "RECONCILER_"
	envConfig       = envPrefix + "CONFIG"
	envTargets      = envPrefix + "TARGETS"
	envTargetPrefix = envTargets + "_"
	envTestPrefix   = envPrefix + "TEST_"
	envOptions      = "OPTIONS"
)

// envPart turns a path or a name into its part of a variable's name: everything that is no letter or digit becomes "_".
func envPart(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, s)
}

// flagName is the flag of a path: "log.level" is --log-level.
func flagName(path string) string {
	return "--" + strings.NewReplacer(".", "-", "_", "-").Replace(path)
}

// Knob describes one key of the config, for documentation and for flags.
type Knob struct {
	Path    string // such as "log.level" or "targets[].timeout"
	Type    string
	Default string // as text; "" when the key has to be given
	Bounds  string // "" when the type says it all
	Env     string // variable that sets it; <NAME> stands for the target's name
	Help    string
}

// globals returns the keys of a config, targets those of each target.
func globals(agent bool) []knob[Config] {
	if agent {
		return agentKnobs()
	}
	return globalKnobs()
}

func targets(agent bool) []knob[Target] {
	if agent {
		return agentTargetKnobs()
	}
	return targetKnobs()
}

// Knobs returns every key of the daemon's config or an agent's, in the order of the documentation.
func Knobs(agent bool) []Knob {
	var all []Knob
	for _, k := range globals(agent) {
		all = append(all, Knob{k.path, k.typ, k.def, k.bounds, envPrefix + envPart(k.path), k.help})
	}
	if !agent {
		all = append(all, tokenList()...)
	}
	all = append(all, Knob{"targets", "list of targets", "empty", "", envTargets, "The places that objects are applied to."})
	for _, k := range targets(agent) {
		all = append(all, Knob{"targets[]." + k.path, k.typ, k.def, k.bounds, envTargetPrefix + "<NAME>_" + envPart(k.path), k.help})
		switch k.path {
		case "name":
			all[len(all)-1].Env = ""
		case "driver":
			all = append(all, Knob{"targets[].options", "mapping", "empty", "", envTargetPrefix + "<NAME>_OPTIONS_<OPTION>",
				"What the driver needs to know; see the driver's documentation."})
		}
	}
	return all
}

func tokenList() []Knob {
	all := []Knob{{"streams.tokens", "list of tokens", "empty", "", "", "Who may read streams, and report on them. Without any, everyone who can connect may."}}
	for _, k := range tokenKnobs() {
		all = append(all, Knob{"streams.tokens[]." + k.path, k.typ, k.def, k.bounds, "", k.help})
	}
	return all
}
