package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Table is the result of a query: for each row, its columns in order, as JSON.
type Table struct{ Rows []Row }

// JSON returns the rows as objects with every column of the query.
func (t *Table) JSON() []json.RawMessage {
	rows := make([]json.RawMessage, len(t.Rows))
	for i, row := range t.Rows {
		rows[i] = row.raw
	}
	return rows
}

// Row is one row of a Table.
type Row struct {
	raw    json.RawMessage
	fields map[string]json.RawMessage
}

func parseRow(raw []byte) (Row, error) {
	row := Row{raw: raw}
	if err := json.Unmarshal(raw, &row.fields); err != nil {
		return Row{}, fmt.Errorf("read a row: %w", err)
	}
	return row, nil
}

// Text returns a column as text: "" for NULL and for a column that is not there.
func (r Row) Text(name string) string {
	raw := r.fields[name]
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

// True reports whether a column is true.
func (r Row) True(name string) bool { return string(r.fields[name]) == "true" }

// Column is one column of a printed table.
type Column struct {
	Title string
	Value func(Row) string
}

// Col shows a column of the result under its own name in capitals; NULL is "-".
func Col(name string) Column {
	return Titled(strings.ToUpper(strings.ReplaceAll(name, "_", " ")), name)
}

// Titled is Col with another title.
func Titled(title, name string) Column {
	return Column{title, func(r Row) string { return orDash(r.Text(name)) }}
}

// Time shows a column of a point in time, in UTC and to the second.
func Time(title, name string) Column {
	return Column{title, func(r Row) string { return orDash(FormatTime(r.Text(name))) }}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// FormatTime turns PostgreSQL's JSON form of a timestamptz into UTC to the second; other texts stay.
func FormatTime(s string) string {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return s
	}
	return at.UTC().Format("2006-01-02 15:04:05Z")
}

// Format is the form of results.
type Format string

// The forms of results.
const (
	FormatTable Format = "table"
	FormatJSON  Format = "json"
)

// Printer writes results in the form that was asked for.
type Printer struct {
	W      io.Writer
	Format Format
}

// JSON reports whether results are written as JSON.
func (p Printer) JSON() bool { return p.Format == FormatJSON }

// Table writes a result: as JSON an array of one object for each row with every column of the query, else the given
// columns, or the sentence for an empty result.
func (p Printer) Table(t *Table, columns []Column, empty string) error {
	if p.JSON() {
		return p.Value(t.JSON())
	}
	if len(t.Rows) == 0 {
		return p.Line(empty)
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.Title
	}
	rows := make([][]string, len(t.Rows))
	for i, row := range t.Rows {
		for _, c := range columns {
			rows[i] = append(rows[i], c.Value(row))
		}
	}
	return p.Grid(titles, rows)
}

// Grid writes titles and rows of texts in columns, made safe for a terminal.
func (p Printer) Grid(titles []string, rows [][]string) error {
	tw := tabwriter.NewWriter(p.W, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, strings.Join(titles, "\t")) // errors stay with the writer until Flush
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = Clean(cell)
		}
		_, _ = fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	return written(tw.Flush())
}

// Value writes any value as indented JSON.
func (p Printer) Value(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("print as JSON: %w", err)
	}
	_, err := b.WriteTo(p.W)
	return written(err)
}

// Line writes a line of text, made safe for a terminal.
func (p Printer) Line(text string) error {
	_, err := fmt.Fprintln(p.W, Clean(text))
	return written(err)
}

// Message writes what a command has done: a line, or {"message": ...}.
func (p Printer) Message(text string) error {
	if p.JSON() {
		return p.Value(map[string]string{"message": text})
	}
	return p.Line(text)
}

func written(err error) error {
	if err != nil {
		return &Failure{Code: ExitDiffers, Text: fmt.Sprintf("the result cannot be written: %v", err), Err: err}
	}
	return nil
}
