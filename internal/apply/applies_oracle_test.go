package apply_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// C56: the state for every combination of the states of one to four operations, whatever people want of it.
func TestApplyStateIsThatOfTheOracle(t *testing.T) {
	t.Parallel()
	db := newPsqlDB(t)
	for _, combination := range combinations(4) {
		counts := map[string]int{}
		for _, state := range combination {
			counts[state]++
		}
		got := db.lines(t, fmt.Sprintf(`SELECT f, w, r, b, reconciler.derive_apply(%d, %d, %d, %d, %d, %d, %d, %d, %d, b, f, w, r)
			FROM unnest('{halt,continue,pause}'::text[]) AS f, unnest('{run,pause,stop,cancel}'::text[]) AS w, unnest('{f,t}'::boolean[]) AS r, unnest('{f,t}'::boolean[]) AS b`,
			counts["pending"], counts["running"], counts["stopping"], counts["stopped"], counts["completed"], counts["superseded"], counts["failed"], counts["halted"], counts["cancelled"]))
		require.Len(t, got, 48)
		for _, line := range got {
			f := strings.Split(line, " | ")
			require.Equal(t, oracle(combination, f[0], f[1], f[2] == "t", f[3] == "t"), f[4], "%v: %s", combination, line)
		}
	}
}

var operationStates = []string{"pending", "running", "stopping", "stopped", "completed", "superseded", "failed", "halted", "cancelled"}

// combinations are those of up to n states, whatever their order.
func combinations(n int) [][]string {
	all := [][]string{}
	var grow func(from int, sofar []string)
	grow = func(from int, sofar []string) {
		if len(sofar) > 0 {
			all = append(all, sofar)
		}
		if len(sofar) == n {
			return
		}
		for i := from; i < len(operationStates); i++ {
			grow(i, append(append([]string{}, sofar...), operationStates[i]))
		}
	}
	grow(0, nil)
	return all
}

// oracle says what docs/applies.md says, without a look at the SQL: it asks questions about the set of states.
func oracle(states []string, onFailure, wish string, released, troubled bool) string {
	is := map[string]bool{}
	for _, s := range states {
		is[s] = true
	}
	only := func(allowed ...string) bool {
		n := 0
		for _, s := range allowed {
			if is[s] {
				n++
			}
		}
		return n == len(is)
	}
	if only("completed", "superseded", "failed", "halted", "cancelled") {
		switch {
		case only("completed"):
			return "completed"
		case only("completed", "superseded"):
			return "superseded"
		case only("completed", "superseded", "cancelled"):
			return "cancelled"
		}
		return "failed"
	}
	known := troubled || is["failed"]
	if wish == "cancel" {
		return "stopping"
	}
	if wish == "stop" {
		if is["pending"] || is["running"] || is["stopping"] {
			return "stopping"
		}
		return "stopped"
	}
	working := map[bool]string{false: "running", true: "degraded"}[known]
	if is["running"] {
		return working
	}
	if is["stopping"] {
		return "stopping"
	}
	if !is["pending"] {
		return "stopped"
	}
	if wish == "pause" || (is["failed"] || is["superseded"] && troubled) && onFailure == "pause" && !released {
		return "paused"
	}
	if only("pending") {
		return "pending"
	}
	return working
}

// C56: the same through rows. What a wish or a halt means for those that have not started is done first.
func TestApplyStateIsDerivedFromRows(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	for _, onFailure := range []string{"halt", "continue", "pause"} {
		id := db.roll(t, "'x', '"+onFailure+"'")
		for _, combination := range combinations(3) {
			// Fewer than three: those that are not asked for are completed, which says nothing.
			states := append([]string{}, combination...)
			for len(states) < 3 {
				states = append(states, "completed")
			}
			db.Exec(t, `UPDATE reconciler.tasks SET state = CASE WHEN n.state IN ('completed', 'superseded', 'failed') THEN n.state ELSE 'pending' END, governs = n.state NOT IN ('completed', 'superseded', 'failed'),
					settled_at = CASE WHEN n.state IN ('completed', 'superseded', 'failed') THEN now() END
				FROM reconciler.operations o, unnest($2::text[]) WITH ORDINALITY AS n(state, ordinal) WHERE o.apply_id = $1 AND o.ordinal = n.ordinal AND operation_id = o.id`, id, states)
			db.Exec(t, `UPDATE reconciler.operations o SET state = n.state, is_open = n.state = 'running', done = n.state IN ('completed', 'superseded', 'failed'), unproven = n.state = 'failed', error = NULL,
					completed = CASE n.state WHEN 'completed' THEN tasks ELSE 0 END, superseded = CASE n.state WHEN 'superseded' THEN tasks ELSE 0 END, failed = CASE n.state WHEN 'failed' THEN tasks ELSE 0 END, cancelled = 0,
					completed_at = CASE WHEN n.state IN ('completed', 'superseded', 'failed', 'halted', 'cancelled') THEN now() END
				FROM unnest($2::text[]) WITH ORDINALITY AS n(state, ordinal) WHERE o.apply_id = $1 AND o.ordinal = n.ordinal`, id, states)
			db.Exec(t, "UPDATE reconciler.applies SET state = 'pending', completed_at = NULL, error_message = NULL WHERE id = $1", id)
			after := append([]string{}, states...)
			halts := onFailure == "halt" && slices.Contains(states, "failed")
			for i, s := range states {
				switch {
				case s == "pending" && halts:
					after[i] = "halted"
				case s == "halted" && !halts:
					after[i] = "pending"
				}
			}
			got := db.line(t, fmt.Sprintf("SELECT reconciler.refresh_apply(%d)", id))
			require.Equal(t, oracle(after, onFailure, "run", false, false), got, "%s: %v", onFailure, states)
			require.Equal(t, got, db.state(t, id))
			require.Equal(t, strings.Join(after, " "), db.line(t, fmt.Sprintf("SELECT string_agg(state, ' ' ORDER BY ordinal) FROM reconciler.operations WHERE apply_id = %d", id)))
			terminal := got == "completed" || got == "superseded" || got == "failed" || got == "cancelled"
			require.Equal(t, map[bool]string{true: "t", false: "f"}[terminal], db.line(t, fmt.Sprintf("SELECT completed_at IS NOT NULL FROM reconciler.applies WHERE id = %d", id)))
		}
	}
}
