package apply_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the table of states in docs/applies.md anew")

const (
	appliesPage = "../../docs/applies.md"
	statesBegin = "<!-- states: written by go test ./internal/apply -run TestAppliesPage -update -->\n"
	statesEnd   = "<!-- end of states -->\n"
)

// C56: the page shows what the function says.
func TestAppliesPageShowsTheStates(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	page, err := os.ReadFile(appliesPage)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), statesBegin)
	require.True(t, found)
	_, after, found := strings.Cut(rest, statesEnd)
	require.True(t, found)
	var table strings.Builder
	fmt.Fprintf(&table, "| | `%s` |\n|%s\n", strings.Join(operationStates, "` | `"), strings.Repeat("---|", len(operationStates)+1))
	for i, one := range operationStates {
		fmt.Fprintf(&table, "| `%s` |", one)
		for j, other := range operationStates {
			if j < i {
				table.WriteString(" |") // the same as the other way round
				continue
			}
			counts := map[string]int{one: 1}
			counts[other]++
			values := make([]string, len(operationStates))
			for n, state := range operationStates {
				values[n] = fmt.Sprint(counts[state])
			}
			state := db.line(t, "SELECT reconciler.derive_apply("+strings.Join(values, ", ")+", false, 'continue', 'run', false)")
			fmt.Fprintf(&table, " %s |", state)
		}
		table.WriteString("\n")
	}
	want := before + statesBegin + table.String() + statesEnd + after
	if *update {
		require.NoError(t, os.WriteFile(appliesPage, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "docs/applies.md is out of date: go test ./internal/apply -run TestAppliesPage -update")
}
