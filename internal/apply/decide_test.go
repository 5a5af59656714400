package apply

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/driver"
)

const testSpec = `{"image": "v2"}`

var (
	specHash  = driver.HashSpec([]byte(testSpec))
	otherHash = driver.HashSpec([]byte(`{"image": "v1"}`))
)

func wantedRow() desired.Row {
	return desired.Row{Key: "k", Wanted: true, Spec: []byte(testSpec), Hash: specHash}
}

// ledgerOf gives every situation that an object can be in a name. Its hashes are the row's unless it says otherwise.
func ledgerOf(situation string) *desired.Entry {
	soon, late := new(10.0), new(-1.0)
	e := map[string]desired.Entry{
		"applied":         {State: desired.Applied, Wanted: true, Present: true, AppliedHash: specHash[:]},
		"applied, other":  {State: desired.Applied, Wanted: true, Present: true, AppliedHash: otherHash[:]},
		"failing":         {State: desired.Failing, Wanted: true, Present: true, FailedHash: specHash[:], DueIn: soon, Attempts: 3},
		"failing, due":    {State: desired.Failing, Wanted: true, Present: true, FailedHash: specHash[:], DueIn: late, Attempts: 3},
		"failing, other":  {State: desired.Failing, Wanted: true, Present: true, FailedHash: otherHash[:], DueIn: soon, Attempts: 3},
		"blocked":         {State: desired.Blocked, Wanted: true, Present: true, FailedHash: specHash[:], Attempts: 1},
		"blocked, other":  {State: desired.Blocked, Wanted: true, Present: true, FailedHash: otherHash[:], Attempts: 1},
		"blocked, absent": {State: desired.Blocked, Wanted: true, FailedHash: otherHash[:]},
		"paused":          {State: desired.Held, Wanted: true, HeldBy: new(heldByPause)},
		"paused, has it":  {State: desired.Held, Wanted: true, Present: true, AppliedHash: specHash[:], HeldBy: new(heldByPause)},
		"paused delete":   {State: desired.Held, Present: true, AppliedHash: specHash[:], HeldBy: new(heldByPause)},
		"guarded delete":  {State: desired.Held, Present: true, AppliedHash: specHash[:], HeldBy: new(heldByGuard)},
		"guarded, other":  {State: desired.Held, Present: true, AppliedHash: otherHash[:], HeldBy: new(heldByGuard)},
		"parked by batch": {State: desired.Held, Present: true, AppliedHash: otherHash[:], HeldBy: new(heldByBatch)},
		"parked by sync":  {State: desired.Held, Present: true, AppliedHash: otherHash[:], HeldBy: new(heldBySync)},
		"in hand":         {State: desired.Pending, Wanted: true, Present: true, DueIn: soon},
		"in hand, has it": {State: desired.Pending, Wanted: true, Present: true, AppliedHash: specHash[:], DueIn: soon},
		"approved delete": {State: desired.Pending, Present: true, AppliedHash: specHash[:], Approved: true, DueIn: late},
		"failing delete":  {State: desired.Failing, Present: true, Attempts: 2, Approved: true, DueIn: soon},
		"delete, due":     {State: desired.Failing, Present: true, Attempts: 2, Approved: true, DueIn: late},
		"blocked delete":  {State: desired.Blocked, Present: true, Attempts: 1, Approved: true},
	}
	if situation == "unknown" {
		return nil
	}
	found, ok := e[situation]
	if !ok {
		panic("no such situation: " + situation)
	}
	return &found
}

// verdict writes a decision as one line.
func verdict(act action, rec *record) string {
	switch act {
	case actNothing:
		if rec != nil {
			return "nothing, but a record"
		}
		return "-"
	case actRecord:
	case actApply, actDelete:
		if rec != nil {
			return "a call and a record"
		}
		return map[action]string{actApply: "apply", actDelete: "delete"}[act]
	}
	if rec.gone {
		return "gone"
	}
	text := string(rec.state)
	if rec.heldBy != "" {
		text += " by " + rec.heldBy
	}
	if !rec.wanted {
		text += ", unwanted"
	}
	if !rec.present {
		text += ", absent"
	}
	return text
}

// How a look at an object can differ from a plain one.
var lookChanges = map[string]func(*look){
	"plain":  func(*look) {},
	"paused": func(l *look) { l.paused = true },
	"force":  func(l *look) { l.item.Force = true },
	"drain":  func(l *look) { l.drain = true },
	"full":   func(l *look) { l.guard = func() bool { return false } },
	"parked": func(l *look) { l.park = heldBySync },

	"again": func(l *look) {
		l.item.Force, l.park, l.guard = true, heldByGuard, func() bool { panic("the guard was asked") }
	},
	"again, due":      func(l *look) { l.item.Force, l.item.Due, l.park = true, true, heldByGuard },
	"recheck":         func(l *look) { l.item.Payload.recheck = true },
	"recheck, paused": func(l *look) { l.item.Payload.recheck, l.paused = true, true },
	"recheck, full": func(l *look) {
		l.item.Payload.recheck, l.guard = true, func() bool { return false }
	},
	"orphan": func(l *look) { l.item.Force, l.park = true, heldBySync },

	"drain, guarded": func(l *look) { l.drain, l.guard = true, func() bool { panic("the guard was asked") } },
}

func testLook(row desired.Row, situation, change string) look {
	l := look{resource: &desired.Resource{}, item: &Item{ObjectID: object("k"), Revision: 7}, row: row, guard: func() bool { return true }, now: 9}
	l.row.Ledger = ledgerOf(situation)
	lookChanges[change](&l)
	return l
}

func requireDecisions(t *testing.T, row desired.Row, columns []string, table map[string][]string) {
	t.Helper()
	for situation, want := range table {
		for i, change := range columns {
			t.Run(fmt.Sprintf("%s/%s", situation, change), func(t *testing.T) {
				t.Parallel()
				require.Equal(t, want[i], verdict(decide(testLook(row, situation, change))))
			})
		}
	}
}

// A running row asks for the object.
func TestDecisionsAboutWantedObjects(t *testing.T) {
	t.Parallel()
	requireDecisions(t, wantedRow(), []string{"plain", "paused", "force", "full", "parked"}, map[string][]string{
		"unknown":         {"apply", "held by pause, absent", "apply", "apply", "apply"},
		"applied":         {"-", "-", "apply", "-", "-"},
		"applied, other":  {"apply", "held by pause", "apply", "apply", "apply"},
		"failing":         {"-", "-", "apply", "-", "-"},
		"failing, due":    {"apply", "held by pause", "apply", "apply", "apply"},
		"failing, other":  {"apply", "held by pause", "apply", "apply", "apply"},
		"blocked":         {"-", "-", "apply", "-", "-"},
		"blocked, other":  {"apply", "held by pause", "apply", "apply", "apply"},
		"blocked, absent": {"apply", "held by pause, absent", "apply", "apply", "apply"},
		"paused":          {"apply", "-", "apply", "apply", "apply"},
		"paused, has it":  {"applied", "applied", "apply", "applied", "applied"},
		"paused delete":   {"applied", "applied", "apply", "applied", "applied"},
		"guarded delete":  {"applied", "applied", "apply", "applied", "applied"},
		"guarded, other":  {"apply", "held by pause", "apply", "apply", "apply"},
		"parked by batch": {"apply", "held by pause", "apply", "apply", "apply"},
		"parked by sync":  {"apply", "held by pause", "apply", "apply", "apply"},
		"in hand":         {"apply", "held by pause", "apply", "apply", "apply"},
		"in hand, has it": {"applied", "applied", "apply", "applied", "applied"},
		"approved delete": {"applied", "applied", "apply", "applied", "applied"},
		"failing delete":  {"apply", "held by pause", "apply", "apply", "apply"},
		"delete, due":     {"apply", "held by pause", "apply", "apply", "apply"},
		"blocked delete":  {"apply", "held by pause", "apply", "apply", "apply"},
	})
}

// The row was read and is gone, or not running. I5, I6, I7.
func TestDecisionsAboutUnwantedObjects(t *testing.T) {
	t.Parallel()
	const (
		paused  = "held by pause, unwanted"
		guarded = "held by guard, unwanted"
		parked  = "held by sync, unwanted"
	)
	requireDecisions(t, desired.Row{Key: "k"}, []string{"plain", "full", "paused", "parked", "drain", "force"}, map[string][]string{
		"unknown":         {"-", "-", "-", "-", "-", "delete"},
		"applied":         {"delete", guarded, paused, parked, "delete", "delete"},
		"applied, other":  {"delete", guarded, paused, parked, "delete", "delete"},
		"failing":         {"delete", guarded, paused, parked, "delete", "delete"},
		"failing, due":    {"delete", guarded, paused, parked, "delete", "delete"},
		"failing, other":  {"delete", guarded, paused, parked, "delete", "delete"},
		"blocked":         {"delete", guarded, paused, parked, "delete", "delete"},
		"blocked, other":  {"delete", guarded, paused, parked, "delete", "delete"},
		"blocked, absent": {"gone", "gone", "gone", "gone", "gone", "delete"},
		"paused":          {"gone", "gone", "gone", "gone", "gone", "delete"},
		"paused, has it":  {"delete", guarded, paused, parked, "delete", "delete"},
		"paused delete":   {"delete", guarded, "-", parked, "delete", "delete"},
		"guarded delete":  {"-", "-", "-", "-", "delete", "-"},
		"guarded, other":  {"-", "-", "-", "-", "delete", "-"},
		"parked by batch": {"delete", guarded, paused, parked, "delete", "delete"},
		"parked by sync":  {"delete", guarded, paused, "-", "delete", "delete"},
		"in hand":         {"delete", guarded, paused, parked, "delete", "delete"},
		"in hand, has it": {"delete", guarded, paused, parked, "delete", "delete"},
		"approved delete": {"delete", "delete", paused, "delete", "delete", "delete"},
		"failing delete":  {"-", "-", "-", "-", "-", "-"},
		"delete, due":     {"delete", "delete", paused, "delete", "delete", "delete"},
		"blocked delete":  {"-", "-", "-", "-", "-", "delete"},
	})
}

// A delete counts once, also when it is made again after a crash: once the ledger does not know the object any more, the guard is
// not asked. An object that was due had been in the ledger: if it is gone from there, it has been deleted. A sync's deletes are counted:
// it finds what nothing has named.
func TestDecisionsAboutDeletesThatAreMadeAgain(t *testing.T) {
	t.Parallel()
	requireDecisions(t, desired.Row{Key: "k"}, []string{"again", "again, due", "orphan"}, map[string][]string{
		"unknown":         {"delete", "-", "held by sync, unwanted"},
		"blocked, absent": {"delete", "delete", "held by sync, unwanted"},
		"applied":         {"held by guard, unwanted", "held by guard, unwanted", "held by sync, unwanted"},
	})
}

// An object that the target names as changed is called for if the ledger says that it is applied. All others are looked at as without
// that: those that failed keep their turn, and only the guard lets something be deleted.
func TestDecisionsAboutWhatTheTargetNames(t *testing.T) {
	t.Parallel()
	changes := []string{"recheck", "recheck, paused"}
	requireDecisions(t, wantedRow(), changes, map[string][]string{
		"unknown":        {"apply", "held by pause, absent"},
		"applied":        {"apply", "held by pause"},
		"applied, other": {"apply", "held by pause"},
		"failing":        {"-", "-"},
		"failing, due":   {"apply", "held by pause"},
		"blocked":        {"-", "-"},
		"paused":         {"apply", "-"},
	})
	requireDecisions(t, desired.Row{Key: "k"}, []string{"recheck", "recheck, paused", "recheck, full"}, map[string][]string{
		"unknown":        {"-", "-", "-"},
		"applied":        {"delete", "held by pause, unwanted", "held by guard, unwanted"},
		"failing delete": {"-", "-", "-"},
		"guarded delete": {"-", "-", "-"},
		"blocked delete": {"-", "-", "-"},
	})
	_, rec := decide(testLook(wantedRow(), "applied", "recheck, paused"))
	require.Nil(t, rec.appliedHash, "what the target has is not known: it is called for after the pause")

	gated := wantedRow()
	gated.Task = &desired.Task{Operation: 1}
	requireDecisions(t, gated, changes, map[string][]string{"applied": {"apply", "held by pause"}, "applied, other": {"held by gate", "held by gate"}})
}

// A target that is given up: the row is there, and nothing is wanted all the same. The guard is not asked.
func TestDecisionsWhileATargetIsGivenUp(t *testing.T) {
	t.Parallel()
	requireDecisions(t, wantedRow(), []string{"drain, guarded"}, map[string][]string{
		"unknown": {"-"}, "applied": {"delete"}, "failing": {"delete"}, "blocked, absent": {"gone"}, "guarded delete": {"delete"}, "parked by sync": {"delete"},
		"failing delete": {"-"}, "delete, due": {"delete"},
	})
}

// C30, I4, I5: a row that cannot become an object is blocked with the reason, once, and nothing of it is deleted.
func TestDecisionsAboutSpoiledRows(t *testing.T) {
	t.Parallel()
	row := desired.Row{Key: "k", Err: errors.New("its spec is null")}
	table := map[string][]string{"unknown": {"blocked, absent", "blocked, absent"}, "blocked, absent": {"blocked, absent", "blocked, absent"}, "paused": {"blocked, absent", "blocked, absent"}}
	for _, situation := range []string{
		"applied", "applied, other", "failing", "failing, due", "blocked", "paused delete", "guarded delete", "parked by sync", "in hand", "approved delete",
		"failing delete", "blocked delete",
	} {
		table[situation] = []string{"blocked", "blocked"}
	}
	requireDecisions(t, row, []string{"plain", "full"}, table)

	l := testLook(row, "blocked", "plain")
	l.row.Ledger.LastError = new("its spec is null")
	require.Equal(t, "-", verdict(decide(l)), "it is recorded already")
	l.drain = true
	require.Equal(t, "delete", verdict(decide(l)), "what a target that is given up has is deleted, whatever the row says")

	_, rec := decide(testLook(row, "failing", "plain"))
	require.Equal(t, &record{
		state: desired.Blocked, wanted: true, present: true, desiredRevision: 7, err: "its spec is null", delay: -1,
	}, rec)
}

// A key that the ledger cannot hold is shown under a shortened one, as long as its row is there.
func TestOverlongKeysAreShownWhileTheirRowIsThere(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxKeyBytes+1)
	l := testLook(wantedRow(), "unknown", "plain")
	l.item.Key = long
	require.Equal(t, &record{
		state: desired.Blocked, wanted: true, desiredRevision: 9, delay: -1, generation: -1, err: "its key has 2001 bytes; the longest that can be kept has 2000",
	}, l.overlong())
	l.row = desired.Row{}
	require.Equal(t, &record{gone: true}, l.overlong())
	l.row.Err = errors.New("unreadable")
	require.False(t, l.overlong().gone)

	require.Equal(t, "short", ledgerKey("short"))
	require.Equal(t, strings.Repeat("x", maxKeyBytes), ledgerKey(long[:maxKeyBytes]))
	short := ledgerKey(long)
	require.Equal(t, strings.Repeat("x", 200)+"... (sha256 9f2c9dcddb048a0b2baf27b3fec5efb480c7d9500ff0c6510b78f0033683c5c5)", short)
	require.NotEqual(t, short, ledgerKey(long+"x"))

	// A sync finds no row of the shortened key; that says nothing about the row of the whole one.
	sweep := testLook(desired.Row{}, "blocked, absent", "plain")
	sweep.item.Key = short
	require.Equal(t, "-", verdict(decide(sweep)))
	sweep.row.Ledger.State = desired.Pending
	require.Equal(t, "gone", verdict(decide(sweep)), "retry() takes it away")
}

// A delete has passed the guard, or waits there, and its row did not protect it. If the row came back protected and was deleted again,
// the delete waits for approve().
func TestF138_DecisionsAboutDeletesThatHaveBecomeProtected(t *testing.T) {
	t.Parallel()
	const guarded = "held by guard, unwanted"
	columns := []string{"plain", "drain", "again, due"}
	requireDecisions(t, desired.Row{Key: "k", Protected: true}, columns, map[string][]string{
		"applied":         {guarded, guarded, guarded},
		"approved delete": {guarded, guarded, guarded},
		"failing delete":  {guarded, guarded, guarded},
		"delete, due":     {guarded, guarded, guarded},
		"blocked delete":  {guarded, guarded, guarded},
		"guarded delete":  {guarded, guarded, guarded},
		"parked by batch": {guarded, guarded, guarded},
		"blocked, absent": {"gone", "gone", guarded},
	})
	for _, situation := range []string{"failing delete", "approved delete"} {
		_, rec := decide(testLook(desired.Row{Key: "k", Protected: true}, situation, "plain"))
		require.True(t, rec.protected)
		require.False(t, rec.approved, "the approval was of another delete")
	}

	// The other way round the last row decides, but for what the guard holds already.
	l := testLook(desired.Row{Key: "k"}, "applied", "plain")
	l.row.Ledger.Protected = true
	require.Equal(t, "delete", verdict(decide(l)))
	l = testLook(desired.Row{Key: "k"}, "guarded delete", "plain")
	l.row.Ledger.Protected = true
	require.Equal(t, "-", verdict(decide(l)))
}

func TestRecordCarriesWhatTheLedgerKnows(t *testing.T) {
	t.Parallel()
	l := testLook(wantedRow(), "failing, other", "paused")
	l.row.Match = []byte(`{"workspace_id": 1}`)
	l.row.Ledger.LastError = new("refused")
	l.row.Ledger.DesiredRevision = 8
	_, rec := decide(l)
	require.Equal(t, &record{
		state: desired.Held, wanted: true, present: true, desiredRevision: 8, failedHash: otherHash[:], attempts: 3, err: "refused",
		heldBy: heldByPause, delay: -1, match: `{"workspace_id": 1}`,
	}, rec)

	l.item.Revision, l.row.Ledger = 0, nil
	_, rec = decide(l)
	require.EqualValues(t, 9, rec.desiredRevision, "a sync asks: the newest revision known when the row was read")

	_, rec = decide(testLook(wantedRow(), "guarded delete", "plain"))
	require.Equal(t, &record{
		state: desired.Applied, wanted: true, present: true, desiredRevision: 7, appliedRevision: 9, appliedHash: specHash[:], delay: -1,
	}, rec, "the row came back: the target has it still")

	_, rec = decide(testLook(desired.Row{}, "failing", "paused"))
	require.Zero(t, rec.attempts, "attempts at an apply say nothing about the delete")
}

// The guard is asked once for each delete, however often it is looked at.
func TestGuardIsAskedOnceForADelete(t *testing.T) {
	t.Parallel()
	asked := 0
	l := testLook(desired.Row{}, "applied", "plain")
	l.guard = func() bool { asked++; return true }
	for range 3 {
		require.Equal(t, "delete", verdict(decide(l)))
	}
	require.Equal(t, 1, asked)
}

func TestLongErrorsAreCut(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", clip("short"))
	require.Equal(t, "a\ufffdb", clip("a\x00b"))
	require.Equal(t, "\ufffd", clip("\xff"))
	require.Equal(t, strings.Repeat("x", maxErrorBytes), clip(strings.Repeat("x", maxErrorBytes+1)))
	require.Equal(t, strings.Repeat("ä", maxErrorBytes/2), clip(strings.Repeat("ä", maxErrorBytes)))
	require.Equal(t, "x"+strings.Repeat("ä", maxErrorBytes/2-1), clip("x"+strings.Repeat("ä", maxErrorBytes)), "no half of a letter")
	require.False(t, strings.ContainsRune(clip(strings.Repeat("\x00", 5000)), 0))
}
