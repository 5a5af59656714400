package config

import (
	"errors"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// parseYAML reads one YAML document; nil when it is empty. It works on the syntax tree and not on decoded
// values, because problems are reported with their line and column.
func parseYAML(content []byte) (*node, error) {
	// Keys given twice are reported with all other problems, not as the first and only one.
	file, err := parser.ParseBytes(content, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, yamlSyntaxError(err)
	}
	docs := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil })
	if len(docs) == 0 {
		return nil, nil
	}
	if len(docs) > 1 {
		return nil, syntaxErrorf(nodePosition(docs[1].Body), "a second document starts here; a config file holds one")
	}
	c := &yamlConverter{anchors: map[string]*node{}}
	return c.convert(docs[0].Body, 1)
}

// yamlSyntaxError keeps message and place, and drops the excerpt of the source, which may hold a secret.
func yamlSyntaxError(err error) error {
	var syntax *yaml.SyntaxError
	if !errors.As(err, &syntax) {
		return syntaxErrorf(position{}, "not valid YAML")
	}
	printable := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, syntax.Message)
	return syntaxErrorf(tokenPosition(syntax.Token), "not valid YAML: %s", printable)
}

func tokenPosition(t *token.Token) position {
	if t == nil || t.Position == nil {
		return position{}
	}
	return position{line: t.Position.Line, col: t.Position.Column}
}

// nodePosition is where a person would point: a block mapping starts at its first key, not at its first colon.
func nodePosition(n ast.Node) position {
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		return tokenPosition(m.Values[0].Key.GetToken())
	}
	return tokenPosition(n.GetToken())
}

type yamlConverter struct {
	anchors map[string]*node
}

func (c *yamlConverter) convert(n ast.Node, depth int) (*node, error) {
	if n == nil {
		return nullNode(position{}), nil
	}
	if depth > maxDepth {
		return nil, syntaxErrorf(nodePosition(n), "nested more than %d levels deep", maxDepth)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		return c.convertMap(n, depth)
	case *ast.SequenceNode:
		return c.convertList(n, depth)
	case *ast.AnchorNode:
		value, err := c.convert(n.Value, depth+1)
		if err != nil {
			return nil, err
		}
		c.anchors[n.Name.GetToken().Value] = value
		return value, nil
	case *ast.AliasNode:
		return c.alias(n)
	case *ast.TagNode:
		return c.convertTag(n, depth)
	default:
		return convertScalar(n)
	}
}

// alias returns the tree of an anchor. An anchor is known once its value is complete, so that none contains itself.
func (c *yamlConverter) alias(n *ast.AliasNode) (*node, error) {
	value, ok := c.anchors[n.Value.GetToken().Value]
	if !ok {
		return nil, syntaxErrorf(nodePosition(n), "the alias has no anchor (&name) before it")
	}
	return value, nil
}

func (c *yamlConverter) convertTag(n *ast.TagNode, depth int) (*node, error) {
	value, err := c.convert(n.Value, depth+1)
	if err != nil {
		return nil, err
	}
	switch n.Start.Value {
	case "!!str":
		if value.kind != kindList && value.kind != kindMap {
			return stringNode(value.pos, sourceText(n.Value, value)), nil
		}
		return value, nil
	case "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return value, nil
	default:
		return nil, syntaxErrorf(nodePosition(n), "tags other than !!str, !!int, !!float, !!bool, !!null, !!map and !!seq are not supported")
	}
}

// sourceText is a scalar as written: !!str 010 is "010", not "8".
func sourceText(n ast.Node, value *node) string {
	if value.kind == kindString || n == nil {
		return value.text
	}
	return n.GetToken().Value
}

func (c *yamlConverter) convertList(n *ast.SequenceNode, depth int) (*node, error) {
	items := make([]*node, 0, len(n.Values))
	for _, v := range n.Values {
		item, err := c.convert(v, depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	list := listNode(nodePosition(n), items)
	return list, check(list, depth)
}

func (c *yamlConverter) convertMap(n *ast.MappingNode, depth int) (*node, error) {
	fields := make([]field, 0, len(n.Values))
	var merged []*node
	for _, v := range n.Values {
		value, err := c.convert(v.Value, depth+1)
		if err != nil {
			return nil, err
		}
		if v.Key.Type() == ast.MergeKeyType {
			merged = append(merged, value)
			continue
		}
		key, err := mapKey(v.Key)
		if err != nil {
			return nil, err
		}
		fields = append(fields, field{key: key, pos: nodePosition(v.Key), value: value})
	}
	fields, err := mergeFields(fields, merged)
	if err != nil {
		return nil, err
	}
	m := mapNode(nodePosition(n), fields)
	return m, check(m, depth)
}

// mergeFields adds the entries of `<<:` that the mapping does not have itself. Earlier ones win, as YAML says.
func mergeFields(fields []field, merged []*node) ([]field, error) {
	for _, source := range merged {
		maps := []*node{source}
		if source.kind == kindList {
			maps = source.items
		}
		for _, m := range maps {
			if m.kind != kindMap {
				return nil, syntaxErrorf(m.pos, "<< takes a mapping or a list of mappings, not %s", m.kind)
			}
			own := fields
			for _, f := range m.fields {
				if !slices.ContainsFunc(own, func(g field) bool { return g.key == f.key }) {
					fields = append(fields, f)
				}
			}
		}
	}
	return fields, nil
}

func mapKey(key ast.MapKeyNode) (string, error) {
	var n ast.Node = key
	if explicit, ok := key.(*ast.MappingKeyNode); ok {
		n = explicit.Value
	}
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return n.GetToken().Value, nil
	default:
		return "", syntaxErrorf(nodePosition(key), "a key must be a plain word or a string")
	}
}

func convertScalar(n ast.Node) (*node, error) {
	pos := nodePosition(n)
	switch n := n.(type) {
	case *ast.NullNode:
		return nullNode(pos), nil
	case *ast.StringNode:
		return stringNode(pos, n.Value), nil
	case *ast.LiteralNode:
		return stringNode(pos, n.Value.Value), nil
	case *ast.BoolNode:
		return boolNode(pos, n.Value), nil
	case *ast.FloatNode:
		if math.IsInf(n.Value, 0) {
			return nil, syntaxErrorf(pos, "a number is too large")
		}
		return floatNode(pos, n.Value), nil
	case *ast.IntegerNode:
		return yamlInteger(pos, n.Value), nil
	default:
		return nil, syntaxErrorf(pos, "this kind of value is not supported; use strings, numbers, booleans, lists and mappings")
	}
}

// yamlInteger takes the parser's two integer types to one; what does not fit becomes a float, as in JSON.
func yamlInteger(pos position, value any) *node {
	switch i := value.(type) {
	case int64:
		return intNode(pos, i)
	case uint64:
		if i <= math.MaxInt64 {
			return intNode(pos, int64(i))
		}
		return floatNode(pos, float64(i))
	default:
		return nullNode(pos)
	}
}
