package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pgreconciler/reconciler/internal/driver"
)

// decodeTargets replaces the list of targets.
func (l *loader) decodeTargets(list *node, source Origin) {
	switch list.kind {
	case kindNull:
		return
	case kindList:
	default:
		l.problems.add(source, "targets", "must be a list with one mapping for each target (- name: ...), not %s", list.kind)
		return
	}
	l.cfg.Targets = make([]Target, len(list.items))
	l.cfg.origins["targets"] = source
	for i, item := range list.items {
		l.decodeTarget(i, item, source)
	}
}

func (l *loader) decodeTarget(i int, n *node, source Origin) {
	t := &l.cfg.Targets[i]
	for _, k := range l.targets {
		k.init(t)
	}
	t.Options = driver.Options{}
	entry := fmt.Sprintf("targets[%d]", i)
	l.cfg.origins[entry] = source.at(n.pos)
	if n.kind != kindMap {
		l.broken[i], l.closed[i] = true, true
		l.problems.add(source.at(n.pos), entry, "must be a mapping with the keys name, driver and options, not %s", n.kind)
		return
	}
	decode(l, mapping[Target]{
		dst: t, knobs: l.targets, source: source, base: entry + ".",
		extra: map[string]func(field){"options": func(f field) { l.decodeOptions(i, f, source) }},
	}, n, "")
}

func (l *loader) decodeOptions(i int, f field, source Origin) {
	path := targetPath(i, "options")
	switch f.value.kind {
	case kindNull:
		return
	case kindMap:
	default:
		l.closed[i] = true
		l.problems.add(source.at(f.place()), path, "must be a mapping of the driver's options, not %s", f.value.kind)
		return
	}
	l.cfg.origins[path] = source.at(f.place())
	seen := map[string]position{}
	for _, option := range f.value.fields {
		if first, twice := seen[option.key]; twice {
			l.problems.add(source.at(option.pos), path+"."+option.key, "given twice, first at %s", source.at(first))
			continue
		}
		seen[option.key] = option.pos
		l.setOption(i, option.key, option.value, source.at(option.place()))
	}
}

// setOption sets one option and notes the origin of every value in it.
func (l *loader) setOption(i int, name string, n *node, origin Origin) {
	if n.kind == kindNull {
		return
	}
	l.cfg.Targets[i].Options[name] = n.plain()
	l.noteOrigins(targetPath(i, "options."+name), n, origin)
}

func (l *loader) noteOrigins(path string, n *node, origin Origin) {
	l.cfg.origins[path] = origin
	place := func(pos position) Origin {
		if origin.Source != SourceFile {
			return origin
		}
		return origin.at(pos)
	}
	for _, f := range n.fields {
		l.noteOrigins(path+"."+f.key, f.value, place(f.place()))
	}
	for j, item := range n.items {
		l.noteOrigins(fmt.Sprintf("%s[%d]", path, j), item, place(item.pos))
	}
}

// clearOptions forgets the options of a target, and where they came from.
func (l *loader) clearOptions(i int) {
	l.cfg.Targets[i].Options = driver.Options{}
	for path := range l.cfg.origins {
		if strings.HasPrefix(path, targetPath(i, "options.")) {
			delete(l.cfg.origins, path)
		}
	}
}

// OptionsFingerprint returns 32 hexadecimal digits that are equal exactly as long as driver and options are. The
// order of keys and the format of the file make no difference. A change means that the target may be another
// place, so that everything is to be applied again.
func (t Target) OptionsFingerprint() string {
	// Maps are encoded in the order of their keys, and 5 and 5.0 alike. Options hold nothing that cannot be encoded.
	encoded, err := json.Marshal([]any{t.Driver, map[string]any(t.Options)})
	if err != nil {
		encoded = fmt.Appendf(nil, "%q %v", t.Driver, map[string]any(t.Options))
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:16])
}
