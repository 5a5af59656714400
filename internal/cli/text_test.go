package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgreconciler/reconciler/internal/config"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain":            "plain",
		"größe 日本":         "größe 日本",
		"\x1b[2J":          `\x1b[2J`,
		"a\tb\nc":          `a\tb\nc`,
		"\u202eevil":       `\u202eevil`,
		"bad \xff utf8":    `bad \xff utf8`,
		"really \ufffd is": "really \ufffd is",
		"nul\x00":          `nul\x00`,
		`back\slash`:       `back\slash`,
	} {
		require.Equal(t, want, Clean(text), "%q", text)
	}
	require.Equal(t, "one\ntwo\\t", CleanLines("one\ntwo\t"))
}

func TestCleanTextIsPrintableWhateverItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		for _, r := range Clean(text) {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q is left in %q", r, Clean(text))
			}
		}
	})
}

func TestQuoteLiteral(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"eu": "'eu'", "it's": "'it''s'", "": "''", `a\b`: `E'a\\b'`, `\'`: `E'\\'''`, "'; DROP TABLE x; --": "'''; DROP TABLE x; --'",
	} {
		require.Equal(t, want, QuoteLiteral(text))
	}
}

func flags(args ...string) (*Problems, *struct {
	wait  time.Duration
	rows  int
	color string
}, error,
) {
	p := &Problems{}
	v := &struct {
		wait  time.Duration
		rows  int
		color string
	}{}
	set := pflag.NewFlagSet("x", pflag.ContinueOnError)
	p.Duration(set, &v.wait, "wait", 90*time.Second, "how long")
	p.Int(set, &v.rows, "rows", 7, 1, 9, "how many")
	p.Choice(set, &v.color, "color", "k", []string{"red", "blue"}, "which")
	return p, v, set.Parse(args)
}

func TestFlagsNoteEveryProblem(t *testing.T) {
	t.Parallel()
	p, v, err := flags("--wait", "5", "--rows=0", "-k", "green", "--wait=x", "--wait", "-1s", "--rows=nine")
	require.NoError(t, err)
	require.Equal(t, "6 problems:\n  --wait: needs a unit: write 5s, 5m or 5h instead of 5\n  --rows: must be a whole number from 1 to 9, not \"0\"\n"+
		"  --color: must be red or blue, not \"green\"\n  --wait: \"x\" is no duration: write a number with a unit, such as 500ms, 30s or 1h30m\n"+
		"  --wait: must not be negative, but is -1s\n  --rows: must be a whole number from 1 to 9, not \"nine\"", p.Err(nil, "").Error())
	require.Equal(t, 90*time.Second, v.wait, "what is wrong changes nothing")
}

func TestFlagsTakeWhatIsRight(t *testing.T) {
	t.Parallel()
	p, v, err := flags()
	require.NoError(t, errors.Join(err, p.Err(nil, "")))
	require.Equal(t, []any{90 * time.Second, 7, "red"}, []any{v.wait, v.rows, v.color})
	p, v, err = flags("--wait", "0", "--rows", "9", "--color", "blue")
	require.NoError(t, errors.Join(err, p.Err(nil, "")))
	require.Equal(t, []any{time.Duration(0), 9, "blue"}, []any{v.wait, v.rows, v.color})
}

func TestProblemsOfArgumentsAndConfigurationAreOneList(t *testing.T) {
	t.Parallel()
	bad := &config.Error{Problems: []config.Problem{{Path: "a", Text: "is b"}, {Path: "c", Text: "is d"}}}
	p := &Problems{}
	require.Equal(t, error(bad), p.Err(bad, "unused"))
	p.Add("--x: %s", "wrong")
	err := p.Err(bad, "unused")
	require.EqualError(t, err, "3 problems:\n  --x: wrong\n  a: is b\n  c: is d")
	require.Equal(t, Usage("--x: wrong", "see help"), p.Err(nil, "see help"))
	other := errors.New("disk on fire")
	require.ErrorIs(t, p.Err(other, ""), other)
}

func rows(t *testing.T, lines ...string) *Table {
	t.Helper()
	table := &Table{}
	for _, line := range lines {
		row, err := parseRow([]byte(line))
		require.NoError(t, err)
		table.Rows = append(table.Rows, row)
	}
	return table
}

func TestTable(t *testing.T) {
	t.Parallel()
	table := rows(t, `{"key":"a\tb\u001b","n":12,"at":"2026-01-02T03:04:05.678901+00:00","gone":null,"on":true}`, `{"key":"<&>","n":null,"at":null,"gone":null,"on":false}`)
	columns := []Column{Col("key"), Titled("NUMBER", "n"), Time("AT", "at"), Col("gone"), Col("no_such")}

	var b bytes.Buffer
	require.NoError(t, Printer{&b, FormatTable}.Table(table, columns, "nothing"))
	require.Equal(t, "KEY       NUMBER  AT                    GONE  NO SUCH\na\\tb\\x1b  12      2026-01-02 03:04:05Z  -     -\n<&>       -       -                     -     -\n", b.String())
	b.Reset()
	require.NoError(t, Printer{&b, FormatJSON}.Table(table, columns, "nothing"))
	require.True(t, json.Valid(b.Bytes()))
	require.True(t, strings.HasPrefix(b.String(), "[\n  {\n    \"key\": \"a\\tb\\u001b\",\n    \"n\": 12,\n"), b.String())
	require.Contains(t, b.String(), `"key": "<&>"`, "in the order of the query, and not as HTML")
	require.True(t, table.Rows[0].True("on"))
	require.False(t, table.Rows[1].True("on"))

	b.Reset()
	require.NoError(t, Printer{&b, FormatTable}.Table(&Table{}, columns, "nothing"))
	require.NoError(t, Printer{&b, FormatJSON}.Table(&Table{}, columns, "nothing"))
	require.NoError(t, Printer{&b, FormatTable}.Message("done"))
	require.NoError(t, Printer{&b, FormatJSON}.Message("done"))
	require.Equal(t, "nothing\n[]\ndone\n{\n  \"message\": \"done\"\n}\n", b.String())
}

func TestRowsThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	_, err := parseRow([]byte("[1]"))
	require.ErrorContains(t, err, "read a row: ")
	require.Equal(t, "soon", FormatTime("soon"))
}
