package config

import (
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const (
	// tokenMin and tokenMax bound the length of a token, in bytes.
	tokenMin = 16
	tokenMax = 4096
	// tokenFileMax bounds the bytes that are read of a file of tokens.
	tokenFileMax = 1 << 20

	streamDriver = "stream"
)

// What a token may do.
const (
	AllowRead   = "read"
	AllowReport = "report"
)

// Token lets clients that present it read streams, and report what they observe.
type Token struct {
	Name string // shown in errors
	// File has one token on each line, so that a new one can be valid before the old one goes. Either it or Env is given.
	File string
	// Env is the name of a variable with one token.
	Env string
	// Targets are the streams that it is for; at least one.
	Targets []string
	// Resources are those whose objects it is for; none: all.
	Resources []string
	// Allow is what it may do: AllowRead, AllowReport or both.
	Allow []string
}

// Read returns the tokens in the file or the variable, at least one.
func (t Token) Read(getenv func(string) string) ([]string, error) {
	text := getenv(t.Env)
	if t.File != "" {
		data, err := os.ReadFile(t.File)
		if err != nil {
			return nil, fmt.Errorf("cannot be read: %w", err)
		}
		text = string(data[:min(len(data), tokenFileMax)])
	}
	tokens := strings.Fields(text)
	if len(tokens) == 0 && t.File == "" {
		return nil, fmt.Errorf("the variable %s is not set", t.Env)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s holds no token", t.File)
	}
	for _, token := range tokens {
		if len(token) < tokenMin || len(token) > tokenMax {
			return nil, fmt.Errorf("a token must have %d to %d characters, as `openssl rand -hex 32` prints them, and not %d", tokenMin, tokenMax, len(token))
		}
	}
	return tokens, nil
}

func tokenKnobs() []knob[Token] {
	return []knob[Token]{
		key("name", func(t *Token) *string { return &t.Name }, required, word("name", "1 to 63 letters, digits, `.`, `_`, `-`", checkName),
			"What errors call the token."),
		key("token_file", func(t *Token) *string { return &t.File }, "", word("path", "", func(string) error { return nil }),
			"A file with a token on each line; it is read again every 5 s.").withDefault("none"),
		key("token_env", func(t *Token) *string { return &t.Env }, "", word("name of a variable", "", func(string) error { return nil }),
			"A variable with a token, instead of a file.").withDefault("none"),
		key("targets", func(t *Token) *[]string { return &t.Targets }, nil, words(), "The streams that the token is for.").withDefault(required),
		key("resources", func(t *Token) *[]string { return &t.Resources }, nil, words(), "The resources whose objects it is for.").withDefault("all"),
		key("allow", func(t *Token) *[]string { return &t.Allow }, []string{AllowRead}, wordsOf(AllowRead, AllowReport),
			"What it allows: to read streams, to report what is observed, or both. One token for each target may report."),
	}
}

// words is a list of strings.
func words() codec[[]string] {
	return codec[[]string]{
		typ:    "list of names",
		format: func(list []string) string { return "[" + strings.Join(list, ", ") + "]" },
		parse: func(n *node) ([]string, error) {
			if n.kind != kindList {
				return nil, fmt.Errorf("must be a list such as [eu, us], not %s", n.kind)
			}
			var list []string
			for _, item := range n.items {
				if err := wantString(item); err != nil {
					return nil, fmt.Errorf("each entry %w", err)
				}
				list = append(list, item.text)
			}
			return list, nil
		},
	}
}

// wordsOf is a list of some of these words.
func wordsOf(known ...string) codec[[]string] {
	list := words()
	list.typ = "list of `" + strings.Join(known, "`, `") + "`"
	parse := list.parse
	list.parse = func(n *node) ([]string, error) {
		given, err := parse(n)
		if err != nil {
			return nil, err
		}
		for _, word := range given {
			if !slices.Contains(known, word) {
				return nil, fmt.Errorf("must be a list of %s, and %q is neither", strings.Join(known, " and "), word)
			}
		}
		if len(given) == 0 {
			return nil, fmt.Errorf("is empty: it is a list of %s", strings.Join(known, " and "))
		}
		return given, nil
	}
	return list
}

func tokenPath(i int, path string) string { return fmt.Sprintf("streams.tokens[%d].%s", i, path) }

// decodeTokens replaces the list of tokens.
func (l *loader) decodeTokens(list *node, source Origin) {
	const path = "streams.tokens"
	switch list.kind {
	case kindNull:
		return
	case kindList:
	default:
		l.problems.add(source, path, "must be a list with one mapping for each token (- name: ...), not %s", list.kind)
		return
	}
	l.cfg.Streams.Tokens = make([]Token, len(list.items))
	for i, item := range list.items {
		for _, k := range tokenKnobs() {
			k.init(&l.cfg.Streams.Tokens[i])
		}
		entry := fmt.Sprintf("%s[%d]", path, i)
		l.cfg.origins[entry] = source.at(item.pos)
		if item.kind != kindMap {
			l.problems.add(source.at(item.pos), entry, "must be a mapping with the keys name, token_file and targets, not %s", item.kind)
			continue
		}
		decode(l, mapping[Token]{dst: &l.cfg.Streams.Tokens[i], knobs: tokenKnobs(), source: source, base: entry + "."}, item, "")
		l.checkToken(i)
	}
}

// checkToken checks what does not depend on the targets, which may follow in the file.
func (l *loader) checkToken(i int) {
	t := l.cfg.Streams.Tokens[i]
	at := func(path string) Origin {
		if o, ok := l.cfg.origins[tokenPath(i, path)]; ok {
			return o
		}
		return l.cfg.origins[fmt.Sprintf("streams.tokens[%d]", i)]
	}
	if t.Name == "" && !l.reported(tokenPath(i, "name")) {
		l.problems.add(at("name"), tokenPath(i, "name"), "is missing: give every token a name")
	}
	if (t.File == "") == (t.Env == "") && !l.reported(tokenPath(i, "token_file")) && !l.reported(tokenPath(i, "token_env")) {
		l.problems.add(at("token_file"), tokenPath(i, "token_file"), "give either token_file or token_env")
	}
	if len(t.Targets) == 0 && !l.reported(tokenPath(i, "targets")) {
		l.problems.add(at("targets"), tokenPath(i, "targets"), "is missing: name the streams that the token is for")
	}
	if slices.ContainsFunc(l.cfg.Streams.Tokens[:i], func(other Token) bool { return other.Name == t.Name && t.Name != "" }) {
		l.problems.add(at("name"), tokenPath(i, "name"), "%q is the name of another token", t.Name)
	}
}

// checkTokenTargets refuses tokens for targets that are no streams of this config, and a second one that may report for a target.
func (l *loader) checkTokenTargets() {
	reporters := map[string]string{}
	for i, t := range l.cfg.Streams.Tokens {
		for _, name := range t.Targets {
			target, ok := l.cfg.Target(name)
			switch path := tokenPath(i, "targets"); {
			case !ok:
				l.problems.add(l.cfg.origins[path], path, "there is no target %q in this config", name)
			case target.Driver != streamDriver:
				l.problems.add(l.cfg.origins[path], path, "target %q has the driver %s, and tokens are for the driver %s only", name, target.Driver, streamDriver)
			case slices.Contains(t.Allow, AllowReport) && reporters[name] != "":
				l.problems.add(l.cfg.origins[path], path, "token %q may report for target %q already, and only one token for each target may", reporters[name], name)
			case slices.Contains(t.Allow, AllowReport):
				reporters[name] = t.Name
			}
		}
	}
}

// openStreams reads the certificate and every token once, so that what is wrong with one is known before anything starts.
func (c *Config) openStreams(env driver.Env, p *problems) {
	if s := c.Streams; s.TLSCertFile != "" && s.TLSKeyFile != "" {
		if _, err := tls.LoadX509KeyPair(s.TLSCertFile, s.TLSKeyFile); err != nil {
			p.add(c.origins["streams.tls_cert_file"], "streams.tls_cert_file", "cannot be used: %v", err)
		}
	}
	owners := map[string]string{}
	for i, t := range c.Streams.Tokens {
		if (t.File == "") == (t.Env == "") {
			continue // reported
		}
		path := tokenPath(i, "token_file")
		if t.File == "" {
			path = tokenPath(i, "token_env")
		}
		tokens, err := t.Read(env.Getenv)
		if err != nil {
			p.add(c.origins[path], path, "%v", err)
		}
		for _, token := range tokens {
			if other, taken := owners[token]; taken {
				p.add(c.origins[path], path, "holds a token that %s holds, too: a token must mean one entry", other)
				break
			}
			owners[token] = fmt.Sprintf("streams.tokens[%d]", i)
		}
	}
}
