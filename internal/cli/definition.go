package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Argument is an argument of reconciler.track(). Its flag has the same name, with hyphens.
type Argument struct {
	Name    string // in SQL
	Type    string // in SQL; lists are text[]
	Usage   string // of the flag; "" for a positional argument
	Missing string // what to do where it is not given; "" for an optional argument
}

// TrackArguments are the arguments of reconciler.track(), in its order. The flags of `reconciler track`, the call and the
// migration are all made from it: a call resets what it leaves out, so that an argument forgotten here would be lost.
var TrackArguments = []Argument{
	{Name: "resource", Type: "text"},
	{Name: "relation", Type: "regclass"},
	{Name: "key", Type: "text[]", Usage: "columns of the key (comma-separated)", Missing: "name the column or columns of the key"},
	{
		Name: "target", Type: "text", Usage: "expression for the name of the target; NULL means every target",
		Missing: "give an expression for the name of the target, such as a column",
	},
	{Name: "running", Type: "text", Usage: "expression that says whether the row is wanted (default: true)"},
	{Name: "spec", Type: "text", Usage: "expression for the spec (default: the row without the ignored columns)"},
	{Name: "ignore", Type: "text[]", Usage: "columns whose changes do not matter (comma-separated)"},
	{Name: "depends_on", Type: "jsonb", Usage: "`JSON`: for each base table of a view, which of its columns are which columns of the view"},
	{Name: "always", Type: "boolean", Usage: "also capture what logical replication writes"},
	{Name: "protect", Type: "text", Usage: "expression for rows whose deletes wait for approve (default: none)"},
}

// Flag returns the name of the argument's flag.
func (a Argument) Flag() string { return strings.ReplaceAll(a.Name, "_", "-") }

// TrackFlags adds the flags of the arguments that are not positional.
func TrackFlags(flags *pflag.FlagSet) {
	for _, a := range TrackArguments {
		switch {
		case a.Usage == "":
		case a.Type == "boolean":
			flags.Bool(a.Flag(), false, a.Usage)
		case a.Type == "text[]":
			flags.StringSlice(a.Flag(), nil, a.Usage)
		default:
			flags.String(a.Flag(), "", a.Usage)
		}
	}
}

// Definition is a call of reconciler.track(). It has a string, a []string or true for each argument that was given, by
// its name in SQL. The function has the defaults of the others.
type Definition map[string]any

// ReadDefinition returns what positional arguments and the flags of TrackFlags give. An empty value gives nothing.
func ReadDefinition(positional []string, flags *pflag.FlagSet) Definition {
	d := Definition{}
	for _, a := range TrackArguments {
		switch {
		case a.Usage == "":
			if len(positional) > 0 {
				d[a.Name], positional = positional[0], positional[1:]
			}
		case a.Type == "boolean":
			if given, _ := flags.GetBool(a.Flag()); given {
				d[a.Name] = true
			}
		case a.Type == "text[]":
			if given, _ := flags.GetStringSlice(a.Flag()); len(given) > 0 {
				d[a.Name] = given
			}
		default:
			if given, _ := flags.GetString(a.Flag()); given != "" {
				d[a.Name] = given
			}
		}
	}
	return d
}

// Text returns the value of an argument, or "".
func (d Definition) Text(name string) string {
	text, _ := d[name].(string)
	return text
}

// given returns the arguments that have a value, in order.
func (d Definition) given() []Argument {
	return slices.DeleteFunc(slices.Clone(TrackArguments), func(a Argument) bool { return d[a.Name] == nil })
}

// Call returns the call of reconciler.track() that makes the resource.
func (d Definition) Call() (sql string, values []any) {
	var arguments []string
	for i, a := range d.given() {
		sent := "text" // text is cast by the server, as a literal would be
		if a.Type == "boolean" || a.Type == "text[]" {
			sent = a.Type
		}
		arguments = append(arguments, fmt.Sprintf("%s => $%d::%s::%s", a.Name, i+1, sent, a.Type))
		values = append(values, d[a.Name])
	}
	return "SELECT reconciler.track(" + strings.Join(arguments, ", ") + ")", values
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
	fmt.Fprintf(&b, "\n-- +goose Down\nSELECT reconciler.untrack(%s);\n", gooseLiteral(d.Text("resource")))
	_, err := io.WriteString(w, b.String())
	return written(err)
}

// statement is the call of track() with literals, one argument on each line.
func (d Definition) statement() string {
	var arguments []string
	for _, a := range d.given() {
		literal := "true"
		switch value := d[a.Name].(type) {
		case string:
			literal = gooseLiteral(value)
		case []string:
			literal = gooseArray(value)
		}
		arguments = append(arguments, a.Name+" => "+literal)
	}
	return "SELECT reconciler.track(\n    " + strings.Join(arguments, ",\n    ") + "\n);\n"
}

// multiline reports whether a literal may have more than one line.
func (d Definition) multiline() bool {
	return slices.ContainsFunc(TrackArguments, func(a Argument) bool { return strings.Contains(d.Text(a.Name), "\n") })
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
