package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// DefaultFile is read when it exists and no other file is named.
const DefaultFile = "reconciler.yaml"

const maxFileBytes = 1 << 20

// findFile returns the file to read, or "" for none, and who named it.
func (l *loader) findFile() (path string, named Origin) {
	if l.opts.Path != "" {
		return l.opts.Path, Origin{Source: SourceFlag, Name: "--config"}
	}
	if path := l.env.get(envConfig); path != "" {
		return path, Origin{Source: SourceEnv, Name: envConfig}
	}
	name := DefaultFile
	if l.opts.Agent {
		name = AgentFile
	}
	path = filepath.Join(l.opts.Dir, name)
	// Any other error than absence is reported by the attempt to read it.
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", Origin{}
	}
	return path, Origin{Source: SourceFile, Name: path}
}

// readFile returns the tree of the config file, and nil when there is none or it cannot be read.
func (l *loader) readFile() *node {
	path, named := l.findFile()
	if path == "" {
		return nil
	}
	l.cfg.File = path
	content, err := readLimited(path)
	if err != nil {
		l.problems.add(named, "", "cannot read the config file %q: %v", path, err)
		return nil
	}
	return l.parse(content, Origin{Source: SourceFile, Name: path})
}

// parse reports what is wrong with the syntax and returns nil then.
func (l *loader) parse(content []byte, source Origin) *node {
	root, err := parseDocument(content, source.Name)
	if err == nil {
		return root
	}
	if syntax, ok := errors.AsType[*syntaxError](err); ok {
		source = source.at(syntax.pos)
	}
	l.problems.add(source, "", "%v", err)
	return nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer func() { _ = f.Close() }() // only read from
	content, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, withoutPath(err)
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("it is larger than %d bytes", maxFileBytes)
	}
	return content, nil
}

// withoutPath drops the path from an error whose text gets the path anyway.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// parseDocument reads YAML or JSON; nil means that the document is empty.
func parseDocument(content []byte, name string) (*node, error) {
	content = bytes.TrimPrefix(content, []byte("\uFEFF"))
	if !utf8.Valid(content) {
		return nil, syntaxErrorf(position{}, "not a text in UTF-8")
	}
	if isJSON(content, name) {
		return parseJSON(content)
	}
	return withoutPanic(content, parseYAML)
}

// withoutPanic calls a parser that is not ours: what it cannot take is a problem of the file, not the end of the process.
func withoutPanic(content []byte, parse func([]byte) (*node, error)) (root *node, err error) {
	defer func() {
		if recover() != nil {
			root, err = nil, syntaxErrorf(position{}, "not valid YAML")
		}
	}()
	return parse(content)
}

// isJSON decides by name or by content. A file that begins with "{" or "[" but is no JSON may still be YAML.
func isJSON(content []byte, name string) bool {
	if strings.EqualFold(filepath.Ext(name), ".json") {
		return true
	}
	start := bytes.TrimLeft(content, " \t\r\n")
	return len(start) > 0 && (start[0] == '{' || start[0] == '[') && json.Valid(content)
}
