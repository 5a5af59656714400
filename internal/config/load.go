package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// LoadOptions say where to look.
type LoadOptions struct {
	// Path is the config file that was named by a flag; it must exist. "" means: the file that
	// RECONCILER_CONFIG names, else reconciler.yaml if it exists, else none.
	Path string
	// Dir is where reconciler.yaml is looked for. Default: the current directory.
	Dir string
	// Environ is the environment as os.Environ gives it; nil means that none is read.
	Environ []string
	// Overrides are values from flags, by path, such as "log.level". Problems name the flag --log-level.
	Overrides map[string]string
	// Registry holds the drivers that targets may name. nil means that their names are not checked.
	Registry driver.Registry
	// Agent: the config is an agent's, which has other keys. The file is agent.yaml unless it is named.
	Agent bool
	// ReadStreams has LoadAndOpen read the tokens and the certificate of streams, too. Commands that serve none do without the files.
	ReadStreams bool
}

// Load reads, merges and checks everything but the drivers' options. The error is an *Error with all problems.
// A config without database URL or targets is a valid one, except for an agent: see ValidateDatabase.
func Load(opts LoadOptions) (*Config, error) {
	l := load(opts)
	if err := l.problems.err(); err != nil {
		return nil, err
	}
	return l.cfg, nil
}

// loader merges the sources into a config and notes what is wrong on the way.
type loader struct {
	opts     LoadOptions
	env      environment
	globals  []knob[Config]
	targets  []knob[Target]
	cfg      *Config
	broken   map[int]bool // targets whose entries are no mappings: they have one problem, not five
	closed   map[int]bool // targets whose drivers cannot be opened
	problems problems
}

func load(opts LoadOptions) *loader {
	l := newLoader(opts)
	l.merge(l.readFile())
	return l
}

func newLoader(opts LoadOptions) *loader {
	return &loader{
		opts: opts, env: newEnvironment(opts.Environ), globals: globals(opts.Agent), targets: targets(opts.Agent),
		cfg: &Config{agent: opts.Agent, origins: map[string]Origin{}}, broken: map[int]bool{}, closed: map[int]bool{},
	}
}

// merge lays default, file (nil for none), environment and flags on top of each other.
func (l *loader) merge(root *node) {
	for _, k := range l.globals {
		k.init(l.cfg)
	}
	if root != nil {
		l.decodeRoot(root, Origin{Source: SourceFile, Name: l.cfg.File})
	}
	if value := l.env.get(envTargets); value != "" {
		source := Origin{Source: SourceEnv, Name: envTargets}
		if list := l.parse([]byte(value), source); list != nil {
			l.decodeTargets(list, source)
		}
	}
	l.applyEnv()
	l.applyOverrides()
	l.complete()
}

// set gives a knob the value of a node, and notes where it came from or what is wrong.
func set[T any](l *loader, k knob[T], dst *T, path string, n *node, origin Origin) {
	if err := k.set(dst, n); err != nil {
		l.problems.add(origin, path, "%v", err)
		return
	}
	l.cfg.origins[path] = origin
}

func (l *loader) applyOverrides() {
	for _, path := range slices.Sorted(maps.Keys(l.opts.Overrides)) {
		origin := Origin{Source: SourceFlag, Name: flagName(path)}
		i := slices.IndexFunc(l.globals, func(k knob[Config]) bool { return k.path == path })
		if i < 0 {
			l.problems.add(origin, path, "%s", unknownText("unknown key", path, paths(l.globals)))
			continue
		}
		set(l, l.globals[i], l.cfg, path, textNode(l.opts.Overrides[path]), origin)
	}
}

func paths[T any](knobs []knob[T]) []string {
	all := make([]string, len(knobs))
	for i, k := range knobs {
		all[i] = k.path
	}
	return all
}

// mapping decodes one mapping of a file into a T.
type mapping[T any] struct {
	dst    *T
	knobs  []knob[T]
	source Origin
	base   string                 // field path of the T, such as "targets[1]."; "" for the config itself
	extra  map[string]func(field) // keys that are more than a knob
	// ignored says of a key that it is none of ours.
	ignored func(string) bool
}

// decode walks through the fields below a relative path ("" or "log.").
func decode[T any](l *loader, m mapping[T], n *node, below string) {
	seen := map[string]position{}
	for _, f := range n.fields {
		rel := below + f.key
		path := m.base + rel
		if first, twice := seen[f.key]; twice {
			l.problems.add(m.source.at(f.pos), path, "given twice, first at %s", m.source.at(first))
			continue
		}
		seen[f.key] = f.pos
		decodeField(l, m, f, rel)
	}
}

func decodeField[T any](l *loader, m mapping[T], f field, rel string) {
	path := m.base + rel
	inGroup := func(k knob[T]) bool { return strings.HasPrefix(k.path, rel+".") }
	i := slices.IndexFunc(m.knobs, func(k knob[T]) bool { return k.path == rel })
	switch {
	case m.extra[rel] != nil:
		m.extra[rel](f)
	case i >= 0 && f.value.kind == kindNull: // "key:" with nothing behind it is as good as no key
	case i >= 0:
		set(l, m.knobs[i], m.dst, path, f.value, m.source.at(f.place()))
	case slices.ContainsFunc(m.knobs, inGroup):
		switch f.value.kind {
		case kindNull:
		case kindMap:
			decode(l, m, f.value, rel+".")
		default:
			l.problems.add(m.source.at(f.place()), path, "must be a mapping with the keys %s, not %s",
				strings.Join(children(m, rel+"."), ", "), f.value.kind)
		}
	case m.ignored != nil && m.ignored(rel):
	default:
		below := rel[:len(rel)-len(f.key)]
		l.problems.add(m.source.at(f.pos), path, "%s", unknownKeyText(m, f.key, below))
	}
}

// children are the keys that may stand directly below a relative path.
func children[T any](m mapping[T], below string) []string {
	var keys []string
	for _, path := range append(paths(m.knobs), slices.Sorted(maps.Keys(m.extra))...) {
		if rest, ok := strings.CutPrefix(path, below); ok {
			key, _, _ := strings.Cut(rest, ".")
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// unknownKeyText suggests a key of the same place, or the same key at its right place.
func unknownKeyText[T any](m mapping[T], key, below string) string {
	const what = "unknown key"
	here := children(m, below)
	if len(key) <= longestSuggested && suggest(key, here) == "" {
		for _, path := range paths(m.knobs) {
			if path == key || strings.HasSuffix(path, "."+key) {
				return what + "; did you mean " + m.base + path + "?"
			}
		}
	}
	return unknownText(what, key, here)
}

// decodeRoot decodes the whole file.
func (l *loader) decodeRoot(root *node, source Origin) {
	if root.kind != kindMap {
		if root.kind != kindNull {
			l.problems.add(source.at(root.pos), "", "must be a mapping with keys such as %s and targets, not %s", l.globals[0].path, root.kind)
		}
		return
	}
	extra := map[string]func(field){
		"targets": func(f field) {
			if l.env.get(envTargets) == "" { // else the variable replaces the list
				l.decodeTargets(f.value, source.at(f.place()))
			}
		},
	}
	if !l.opts.Agent {
		extra["streams.tokens"] = func(f field) { l.decodeTokens(f.value, source.at(f.place())) }
	}
	decode(l, mapping[Config]{
		dst: l.cfg, knobs: l.globals, source: source, extra: extra,
		// Room for anchors that targets share, by the convention of compose files.
		ignored: func(key string) bool { return strings.HasPrefix(key, "x-") },
	}, root, "")
}
