package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	t.Parallel()
	columns := []column{
		{"ms", "latency, ms", false, always},
		{"rate", "commits/s", true, always},
		{"giant", "large, s", false, func(a about) string { return a.noGiant }},
	}
	fast, slow, last := newRecord(about{name: "fast", coalesces: true}), newRecord(about{name: "slow", noGiant: "It cannot."}), newRecord(about{name: "last", noGiant: "It cannot."})
	fast.Values = map[string][]float64{"ms": {3, 1, 2}, "rate": {900}, "giant": {.5}}
	slow.Values = map[string][]float64{"ms": {20, 10, 30}, "rate": {12345}}
	last.Values = map[string][]float64{"ms": {2}}
	fast.Committed, slow.Committed, slow.Missing = 1000, 20_000, 7

	require.Equal(t, `| way | latency, ms | commits/s | large, s | never delivered |
|---|---|---|---|---|
| fast [1] | **2.00** (1.00 to 3.00) | 900 | **0.50** | 0 of 1,000 |
| slow | 20.0 (10.0 to 30.0) | **12,345** | – [2] | 7 of 20,000 |
| last | **2.00** | – [3] | – [2] | 0 of 0 |

[1] Gives the consumer the newest version of each object. A change counts as delivered with it; what is counted as never delivered is objects.

[2] It cannot.

[3] Not everything was delivered, in any round.
`, table(columns, []*record{fast, slow, last}))
}

func TestComplete(t *testing.T) {
	t.Parallel()
	all, some, none := &record{Committed: 3}, &record{Committed: 3, Missing: 1}, &record{}
	require.Zero(t, complete([]*record{all, all}))
	require.Equal(t, 1, complete([]*record{all, some}))
	require.Equal(t, 1, complete([]*record{none, all}), "nothing was committed")
}

func TestColumns(t *testing.T) {
	t.Parallel()
	l := &lab{scale: 1, hold: 3 * time.Second}
	seen := map[string]bool{}
	for _, c := range l.columns() {
		require.False(t, seen[c.key], c.key)
		seen[c.key] = true
	}
	for _, mk := range peers {
		a := mk().about()
		for _, why := range []string{a.noTable, a.noGiant, a.noSnapshot} {
			require.True(t, why == "" || strings.HasSuffix(why, "."), "%s: a footnote is a sentence: %q", a.name, why)
		}
		_, bulk := mk().(bulkPeer)
		require.Equal(t, a.noGiant == "", bulk, a.name)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := &lab{scale: 1, hold: time.Second}
	r := newRecord(about{name: "one"})
	r.note("p50", 1.5)
	require.NoError(t, l.write(dir, surroundings{Rounds: 1, Scale: 1, Versions: map[string]string{"River": "v1"}}, []*record{r}))
	raw, err := os.ReadFile(filepath.Join(dir, "peers.json"))
	require.NoError(t, err)
	var back struct{ Peers []record }
	require.NoError(t, json.Unmarshal(raw, &back))
	require.Equal(t, []float64{1.5}, back.Peers[0].Values["p50"])
	text, err := os.ReadFile(filepath.Join(dir, "peers.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "| one | **1.50** |")
	require.NotContains(t, string(text), "%!")
}
