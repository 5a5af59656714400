package cli

import (
	"fmt"
	"io"
	"strings"
)

// Definition is a resource as reconciler.track() takes it.
type Definition struct {
	Resource  string
	Relation  string // as in SQL: schema-qualified and quoted where needed
	Key       []string
	Target    string // SQL expression, as are Running and Spec
	Running   string // "" for the default, true
	Spec      string // "" for the default, the row without the ignored columns
	Ignore    []string
	DependsOn string // JSON; "" for none
	Always    bool
}

const trackSQL = `SELECT reconciler.track(resource => $1, relation => $2::text::regclass, key => $3::text[], target => $4,
	running => coalesce($5, 'true'), spec => $6, ignore => $7::text[], depends_on => $8::text::jsonb, always => $9)`

// Call returns the call of reconciler.track() that makes the resource.
func (d Definition) Call() (sql string, args []any) {
	ignore := d.Ignore
	if ignore == nil {
		ignore = []string{}
	}
	return trackSQL, []any{d.Resource, d.Relation, d.Key, d.Target, Optional(d.Running), Optional(d.Spec), ignore, Optional(d.DependsOn), d.Always}
}

// Goose writes a migration that makes the resource, and unmakes it on the way down: there its objects stay in their targets.
func (d Definition) Goose(w io.Writer) error {
	statement := d.statement()
	var b strings.Builder
	b.WriteString("-- +goose Up\n")
	if strings.Contains(statement, "--") || strings.Count(statement, ";") > 1 || d.multiline() {
		// Goose ends a statement at the first line that ends with ";", be it inside a literal.
		statement = "-- +goose StatementBegin\n" + statement + "-- +goose StatementEnd\n"
	}
	b.WriteString(statement)
	fmt.Fprintf(&b, "\n-- +goose Down\nSELECT reconciler.untrack(%s);\n", gooseLiteral(d.Resource))
	_, err := io.WriteString(w, b.String())
	return written(err)
}

// statement is the call of track() with literals, one argument on each line, defaults left out.
func (d Definition) statement() string {
	arguments := []string{
		"resource => " + gooseLiteral(d.Resource),
		"relation => " + gooseLiteral(d.Relation),
		"key => " + gooseArray(d.Key),
		"target => " + gooseLiteral(d.Target),
	}
	optional := func(name, value string) {
		if value != "" {
			arguments = append(arguments, name+" => "+gooseLiteral(value))
		}
	}
	optional("running", d.Running)
	optional("spec", d.Spec)
	if len(d.Ignore) > 0 {
		arguments = append(arguments, "ignore => "+gooseArray(d.Ignore))
	}
	optional("depends_on", d.DependsOn)
	if d.Always {
		arguments = append(arguments, "always => true")
	}
	return "SELECT reconciler.track(\n    " + strings.Join(arguments, ",\n    ") + "\n);\n"
}

func (d Definition) multiline() bool {
	for _, s := range []string{d.Relation, d.Target, d.Running, d.Spec, d.DependsOn} {
		if strings.Contains(s, "\n") {
			return true
		}
	}
	return false
}

func gooseArray(values []string) string {
	literals := make([]string, len(values))
	for i, v := range values {
		literals[i] = gooseLiteral(v)
	}
	return "ARRAY[" + strings.Join(literals, ", ") + "]"
}

// gooseLiteral is QuoteLiteral, but hides line ends where goose would change them (\r) or take a line of a literal for
// a comment or an order to itself.
func gooseLiteral(s string) string {
	hide := strings.Contains(s, "\r")
	for line := range strings.Lines(s) {
		hide = hide || strings.HasPrefix(strings.TrimSpace(line), "--")
	}
	if !hide {
		return QuoteLiteral(s)
	}
	return "E'" + strings.NewReplacer(`\`, `\\`, "'", "''", "\n", `\n`, "\r", `\r`).Replace(s) + "'"
}
