package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
)

// What an apply holds keeps what it has, whatever else is asked of it.
func TestDecideBehindAGate(t *testing.T) {
	t.Parallel()
	const held, nothing, call, gone = "held by gate", "nothing", "call", "gone"
	for _, c := range []struct {
		ledger string
		wanted bool
		force  bool
		want   string
	}{
		{"unknown", true, false, held},
		{"applied", true, false, nothing},
		{"applied", true, true, call}, // with what it has
		{"applied, other", true, false, held},
		{"applied, other", true, true, held},
		{"failing, due", true, false, held},
		{"failing, other", true, false, held},
		{"blocked, other", true, false, held},
		{"paused", true, false, held},
		{"paused, has it", true, false, "applied"},
		{"in hand", true, false, held},
		{"unknown", false, false, nothing},
		{"blocked, absent", false, false, gone},
		{"applied", false, false, held},
		{"approved delete", false, false, held},
		{"delete, due", false, false, held},
		{"parked by sync", false, false, held},
		{"guarded delete", false, false, nothing}, // the guard's
	} {
		l := look{resource: &desired.Resource{}, item: &Item{ObjectID: ObjectID{Key: "k"}, Force: c.force}, now: 9, guard: func() bool { return true }}
		l.row = desired.Row{Key: "k"}
		if c.wanted {
			l.row = wantedRow()
		}
		l.row.Ledger, l.row.Task = ledgerOf(c.ledger), &desired.Task{Operation: 7}
		act, rec := decide(l)
		got := map[action]string{actNothing: nothing, actApply: call, actDelete: call}[act]
		switch {
		case act == actRecord && rec.gone:
			got = gone
		case act == actRecord && rec.state == desired.Held:
			got = "held by " + rec.heldBy
			require.Equal(t, c.wanted, rec.wanted, "%+v", c)
		case act == actRecord:
			got = string(rec.state)
		}
		require.Equal(t, c.want, got, "%+v", c)
		verdict, _ := l.verdict(rec)
		require.Empty(t, verdict, "%+v: it is not its turn", c)

		// Once more: what is recorded is not recorded again.
		if got == held {
			l.row.Ledger = &desired.Entry{State: desired.Held, Wanted: rec.wanted, Present: rec.present, AppliedHash: rec.appliedHash, HeldBy: new(heldByGate)}
			act, _ = decide(l)
			require.Equal(t, actNothing, act, "%+v", c)
			// And when the gate opens it is called for, a pause or not.
			l.row.Task.Open = true
			act, _ = decide(l)
			require.NotEqual(t, actNothing, act, "%+v", c)
			l.paused = true
			_, rec = decide(l)
			require.Equal(t, heldByPause, rec.heldBy, "%+v", c)
		}
	}
}

// An apply of what is there calls for its objects once their turn has come, whatever the target has.
func TestDecideToApplyAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ledger string
		task   desired.Task
		want   action
	}{
		{"applied", desired.Task{Operation: 7, Open: true, Reapply: true}, actApply},
		{"paused, has it", desired.Task{Operation: 7, Open: true, Reapply: true}, actApply},
		{"applied", desired.Task{Operation: 7, Reapply: true}, actNothing},
		{"applied", desired.Task{Operation: 7, Open: true}, actNothing},
		{"failing", desired.Task{Operation: 7, Open: true, Reapply: true}, actNothing}, // it keeps its turn
		{"blocked", desired.Task{Operation: 7, Open: true, Reapply: true}, actNothing},
	} {
		l := look{resource: &desired.Resource{}, item: &Item{ObjectID: ObjectID{Key: "k"}}, now: 9, guard: func() bool { return true }}
		l.row = wantedRow()
		l.row.Ledger, l.row.Task = ledgerOf(c.ledger), &c.task
		act, _ := decide(l)
		require.Equal(t, c.want, act, "%+v", c)
	}
}

// What a look means for the task that governs the object.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	open := &desired.Task{Operation: 7, Open: true}
	message := "no room"
	for _, c := range []struct {
		name    string
		row     desired.Row
		rec     *record
		verdict string
		cause   string
	}{
		{"NoTask", desired.Row{}, &record{state: desired.Applied}, "", ""},
		{"Closed", desired.Row{Task: &desired.Task{Operation: 7}}, &record{state: desired.Applied}, "", ""},
		{"Applied", desired.Row{Task: open}, &record{state: desired.Applied}, verdictDone, ""},
		{"Gone", desired.Row{Task: open}, &record{gone: true}, verdictDone, ""},
		{"AbsentAndNotWanted", desired.Row{Task: open}, nil, verdictDone, ""},
		{"Unchanged", desired.Row{Task: open, Ledger: &desired.Entry{State: desired.Applied}}, nil, verdictDone, ""},
		{"Failed", desired.Row{Task: open}, &record{state: desired.Failing, called: true, err: message}, verdictAttempt, message},
		{"KeepsItsTurn", desired.Row{Task: open, Ledger: &desired.Entry{State: desired.Failing}}, nil, "", ""},
		{"Blocked", desired.Row{Task: open}, &record{state: desired.Blocked, err: message}, verdictFailed, message},
		{"StillBlocked", desired.Row{Task: open, Ledger: &desired.Entry{State: desired.Blocked, LastError: &message}}, nil, verdictFailed, message},
		{"Held", desired.Row{Task: open}, &record{state: desired.Held, heldBy: heldByPause}, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			verdict, cause := look{row: c.row}.verdict(c.rec)
			require.Equal(t, c.verdict, verdict)
			require.Equal(t, c.cause, cause)
		})
	}
}
