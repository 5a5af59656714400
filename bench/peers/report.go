package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// column is one column of the table.
type column struct {
	key, title string
	// most says that the largest value is the best; else the smallest is.
	most bool
	// dash says why a peer cannot have a value here; empty where it can.
	dash func(about) string
}

func always(about) string { return "" }

// columns of the table, at a scale.
func (l *lab) columns() []column {
	table := func(a about) string { return a.noTable }
	return []column{
		{"p50", "commit to consumer, p50, ms", false, always},
		{"p99", "p99, ms", false, always},
		{"committed16", "16 writers: committed/s", true, always},
		{"delivered16", "delivered/s", true, always},
		{"committed64", "64 writers: committed/s", true, always},
		{"delivered64", "delivered/s", true, always},
		{"share16", "commits of an untracked table's, 16 writers, %", true, table},
		{"share64", "64 writers, %", true, table},
		{"giant", fmt.Sprintf("%s rows in one transaction, s", thousands(l.rows(giantRows))), false, func(a about) string { return a.noGiant }},
		{"open", fmt.Sprintf("longest delay beside a transaction open for %s, ms", l.hold), false, always},
		{"snapshot", fmt.Sprintf("snapshot of %s rows, s", thousands(l.rows(snapshotRows))), false, func(a about) string { return a.noSnapshot }},
	}
}

// notDelivered is why a peer has no value where it could have one.
const notDelivered = "Not everything was delivered, in any round."

// notes are the footnotes, in the order in which they are first needed.
type notes []string

// mark returns the number of a note.
func (n *notes) mark(text string) string {
	for i, known := range *n {
		if known == text {
			return fmt.Sprintf("[%d]", i+1)
		}
	}
	*n = append(*n, text)
	return fmt.Sprintf("[%d]", len(*n))
}

// best returns the best median of a column, and whether there is one.
func (c column) best(records []*record) (best float64, ok bool) {
	for _, r := range records {
		if len(r.Values[c.key]) == 0 {
			continue
		}
		if mid := measure.SpreadOf(r.Values[c.key]).Median; !ok || (mid > best) == c.most {
			best, ok = mid, true
		}
	}
	return best, ok
}

// cell is what the table says of a peer: median, and the extremes where there are several rounds.
func (c column) cell(r *record, best float64, n *notes) string {
	values := r.Values[c.key]
	if len(values) == 0 {
		why := c.dash(r.about)
		if why == "" {
			why = notDelivered
		}
		return "– " + n.mark(why)
	}
	s := measure.SpreadOf(values)
	text := short(s.Median)
	if s.Median == best {
		text = "**" + text + "**"
	}
	if len(values) > 1 {
		text += fmt.Sprintf(" (%s to %s)", short(s.Min), short(s.Max))
	}
	return text
}

// table writes the Markdown table and its footnotes.
func table(columns []column, records []*record) string {
	var b strings.Builder
	var n notes
	b.WriteString("| way |")
	for _, c := range columns {
		b.WriteString(" " + c.title + " |")
	}
	b.WriteString(" never delivered |\n|" + strings.Repeat("---|", len(columns)+2) + "\n")
	for _, r := range records {
		b.WriteString("| " + r.Peer)
		if r.about.coalesces {
			b.WriteString(" " + n.mark("Gives the consumer the newest version of each object. A change counts as delivered with it; what is counted as never delivered is objects."))
		}
		b.WriteString(" |")
		for _, c := range columns {
			best, _ := c.best(records)
			b.WriteString(" " + c.cell(r, best, &n) + " |")
		}
		fmt.Fprintf(&b, " %s of %s |\n", thousands(r.Missing), thousands(r.Committed))
	}
	for i, text := range n {
		fmt.Fprintf(&b, "\n[%d] %s\n", i+1, text)
	}
	return b.String()
}

// surroundings say where figures come from.
type surroundings struct {
	At         time.Time         `json:"at"`
	Commit     string            `json:"commit"`
	PostgreSQL string            `json:"postgresql"`
	Go         string            `json:"go"`
	CPUs       int               `json:"cpus"`
	CPU        string            `json:"cpu"`
	Rounds     int               `json:"rounds"`
	Length     string            `json:"length"`
	Scale      float64           `json:"scale"`
	Versions   map[string]string `json:"versions"`
}

// comparedModules are those whose versions the results name.
var comparedModules = map[string]string{
	"github.com/k3s-io/kine": "kine", "github.com/riverqueue/river": "River", "github.com/ThreeDotsLabs/watermill-sql/v4": "watermill-sql",
	"github.com/jackc/pglogrepl": "pglogrepl",
}

// versions are those that this binary was built from.
func versions() map[string]string {
	found := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if name, ok := comparedModules[dep.Path]; ok {
				found[name] = dep.Version
			}
		}
	}
	return found
}

const resultsHead = `# Ways to get changes out of PostgreSQL

Written by ` + "`make bench/peers`" + `; [README.md](README.md) says what is compared and how, raw figures are in peers.json.

%s, %d processors (%s), PostgreSQL %s with fsync on and wal_level logical, %s, commit %s, scale %g, %s for each round of commits.
kine %s, River %s, watermill-sql %s, pglogrepl %s. Writers, consumers and the server share the machine. Given is the median of
%d interleaved rounds (with minimum and maximum); the best of each column is bold.

`

// write keeps the results as peers.json and peers.md.
func (l *lab) write(dir string, where surroundings, records []*record) error {
	raw, err := json.MarshalIndent(struct {
		surroundings

		Peers []*record `json:"peers"`
	}{where, records}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "peers.json"), append(raw, '\n'), 0o600); err != nil {
		return err
	}
	v := where.Versions
	text := fmt.Sprintf(resultsHead, where.At.Format(time.DateOnly), where.CPUs, where.CPU, where.PostgreSQL, where.Go, where.Commit,
		where.Scale, where.Length, v["kine"], v["River"], v["watermill-sql"], v["pglogrepl"], where.Rounds)
	return os.WriteFile(filepath.Join(dir, "peers.md"), []byte(text+table(l.columns(), records)), 0o600)
}
