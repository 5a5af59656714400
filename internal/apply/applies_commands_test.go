package apply_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// inState brings an apply into a state. Its targets are asia, eu and us, in this order, of three objects each.
var inState = map[string]func(t *testing.T, db appliesDB) int{
	"opening": func(t *testing.T, db appliesDB) int {
		t.Helper()
		return db.begin(t, "'x'", "UPDATE public.deployments SET image = 'app:2'")
	},
	"pending": func(t *testing.T, db appliesDB) int { t.Helper(); return db.roll(t, "'x'") },
	"running": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		return id
	},
	"degraded": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x', 'continue'")
		db.finish(t, id, "asia", "failed")
		return id
	},
	"paused": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_pause(%d)", id))
		return id
	},
	"failure paused": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x', 'pause'")
		db.finish(t, id, "asia", "failed")
		return id
	},
	"stopping": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id))
		return id
	},
	"stopped": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_stop(%d)", id))
		return id
	},
	"cancelling": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		require.True(t, db.claim(t, "asia"))
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_cancel(%d)", id))
		return id
	},
	"completed": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x', strategy => 'parallel'")
		for _, target := range []string{"asia", "eu", "us"} {
			db.finish(t, id, target, "done")
		}
		return id
	},
	"failed": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "failed")
		return id
	},
	"superseded": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.roll(t, "'y'")
		return id
	},
	"failed in vain": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.finish(t, id, "asia", "failed")
		db.settleAs(t, id, "asia", "done", "put back")
		return id
	},
	"cancelled": func(t *testing.T, db appliesDB) int {
		t.Helper()
		id := db.roll(t, "'x'")
		db.lines(t, fmt.Sprintf("SELECT reconciler.apply_cancel(%d)", id))
		return id
	},
}

const (
	hintStart   = "To go on: SELECT reconciler.apply_start(1);"
	hintRelease = "To go on: SELECT reconciler.apply_release(1);"
	hintEnds    = "It ends when calls that are on their way have ended."
	hintOnward  = "Mend it, then try what failed again: SELECT reconciler.apply_retry(1); To go on with 6 objects in 2 targets in spite of that: SELECT reconciler.apply_release(1);"
	hintFailed  = "Mend it, then try what failed again: SELECT reconciler.apply_retry(1); When that succeeds it goes on with 6 objects in 2 targets. Or correct the rows, as a new apply. " + hintHolds
	hintHolds   = "6 objects in 2 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);"
	hintGone    = "Nothing more comes of it. 9 objects in 3 targets keep what the targets have; to let them follow their rows: SELECT reconciler.apply_release(1);"
	hintTaken   = "Nothing: newer changes have taken 9 of its 9 objects."
	hintDone    = "Nothing: it is everywhere."
)

// commandAnswers are, for each state, what every command says, and the state after it. A refusal begins with "!" and changes nothing.
var commandAnswers = map[string]map[string]string{
	"opening": {
		"pause":   "apply 1 starts in no further target, until SELECT reconciler.apply_release(1); -> pending",
		"stop":    "apply 1 is stopped, until SELECT reconciler.apply_start(1); -> pending",
		"start":   "apply 1 is pending already -> pending",
		"release": "apply 1 is pending, and nothing pauses it -> pending",
		"cancel":  "apply 1 is cancelled -> pending",
		"retry":   "nothing of apply 1 has failed -> pending",
	},
	"pending": {
		"pause":   "apply 1 starts in no further target, until SELECT reconciler.apply_release(1); -> paused",
		"stop":    "apply 1 is stopped, until SELECT reconciler.apply_start(1); -> stopped",
		"start":   "apply 1 is pending already -> pending",
		"release": "apply 1 is pending, and nothing pauses it -> pending",
		"cancel":  "apply 1 is cancelled; 9 objects in 3 targets not reached, until SELECT reconciler.apply_release(1); -> cancelled",
		"retry":   "nothing of apply 1 has failed -> pending",
	},
	"running": {
		"pause":   "apply 1 starts in no further target, until SELECT reconciler.apply_release(1); -> running",
		"stop":    "apply 1 is stopping: calls that are on their way end, until SELECT reconciler.apply_start(1); -> stopping",
		"start":   "apply 1 is running already -> running",
		"release": "apply 1 is running, and nothing pauses it -> running",
		"cancel":  "apply 1 is cancelled as soon as calls that are on their way have ended; 6 objects in 2 targets not reached, until SELECT reconciler.apply_release(1); -> stopping",
		"retry":   "nothing of apply 1 has failed -> running",
	},
	"degraded": {
		"pause":   "apply 1 starts in no further target, until SELECT reconciler.apply_release(1); -> paused",
		"stop":    "apply 1 is stopped, until SELECT reconciler.apply_start(1); -> stopped",
		"start":   "apply 1 is degraded already -> degraded",
		"release": "apply 1 is degraded, and nothing pauses it -> degraded",
		"cancel":  "apply 1 is cancelled; 6 objects in 2 targets not reached, until SELECT reconciler.apply_release(1); -> failed",
		"retry":   "3 objects of apply 1 to be tried again, it is pending -> pending",
	},
	"paused": {
		"pause":   "apply 1 is paused already -> paused",
		"stop":    "apply 1 is stopped, until SELECT reconciler.apply_start(1); -> stopped",
		"start":   "! apply 1 is paused, so it cannot be started\n" + hintRelease,
		"release": "apply 1 goes on, it is pending -> pending",
		"cancel":  "apply 1 is cancelled; 9 objects in 3 targets not reached, until SELECT reconciler.apply_release(1); -> cancelled",
		"retry":   "nothing of apply 1 has failed -> paused",
	},
	"failure paused": {
		"pause":   "apply 1 starts in no further target, until SELECT reconciler.apply_release(1); -> paused",
		"stop":    "apply 1 is stopped, until SELECT reconciler.apply_start(1); -> stopped",
		"start":   "! apply 1 is paused, so it cannot be started\n" + hintOnward,
		"release": "apply 1 goes on, it is degraded -> degraded",
		"cancel":  "apply 1 is cancelled; 6 objects in 2 targets not reached, until SELECT reconciler.apply_release(1); -> failed",
		"retry":   "3 objects of apply 1 to be tried again, it is pending -> pending",
	},
	"stopping": {
		"pause":   "! apply 1 is stopping, so it cannot be paused\n" + hintStart,
		"stop":    "apply 1 is stopping already -> stopping",
		"start":   "apply 1 goes on, it is running -> running",
		"release": "! apply 1 is stopping, so it cannot be released\n" + hintStart,
		"cancel":  "apply 1 is cancelled as soon as calls that are on their way have ended; 6 objects in 2 targets not reached, until SELECT reconciler.apply_release(1); -> stopping",
		"retry":   "! apply 1 is stopping, so it cannot be tried again\n" + hintStart,
	},
	"stopped": {
		"pause":   "! apply 1 is stopped, so it cannot be paused\n" + hintStart,
		"stop":    "apply 1 is stopped already -> stopped",
		"start":   "apply 1 goes on, it is pending -> pending",
		"release": "! apply 1 is stopped, so it cannot be released\n" + hintStart,
		"cancel":  "apply 1 is cancelled; 9 objects in 3 targets not reached, until SELECT reconciler.apply_release(1); -> cancelled",
		"retry":   "! apply 1 is stopped, so it cannot be tried again\n" + hintStart,
	},
	"cancelling": {
		"pause":   "! apply 1 is stopping (being cancelled), so it cannot be paused\n" + hintEnds,
		"stop":    "! apply 1 is stopping (being cancelled), so it cannot be stopped\n" + hintEnds,
		"start":   "! apply 1 is stopping (being cancelled), so it cannot be started\n" + hintEnds,
		"release": "! apply 1 is stopping (being cancelled), so it cannot be released\n" + hintEnds,
		"cancel":  "apply 1 is cancelled already -> stopping",
		"retry":   "! apply 1 is stopping (being cancelled), so it cannot be tried again\n" + hintEnds,
	},
	"completed": {
		"pause":   "! apply 1 is completed, so it cannot be paused\n" + hintDone,
		"stop":    "! apply 1 is completed, so it cannot be stopped\n" + hintDone,
		"start":   "! apply 1 is completed, so it cannot be started\n" + hintDone,
		"release": "apply 1 is completed and holds nothing -> completed",
		"cancel":  "! apply 1 is completed, so it cannot be cancelled\n" + hintDone,
		"retry":   "! apply 1 is completed, so it cannot be tried again\n" + hintDone,
	},
	"failed": {
		"pause":   "! apply 1 is failed, so it cannot be paused\n" + hintFailed,
		"stop":    "! apply 1 is failed, so it cannot be stopped\n" + hintFailed,
		"start":   "! apply 1 is failed, so it cannot be started\n" + hintFailed,
		"release": "6 objects in 2 targets of apply 1 follow their rows again -> failed",
		"cancel":  "! apply 1 is failed, so it cannot be cancelled\n" + hintFailed,
		"retry":   "3 objects of apply 1 to be tried again, it is pending -> pending",
	},
	"superseded": {
		"pause":   "! apply 1 is superseded, so it cannot be paused\n" + hintTaken,
		"stop":    "! apply 1 is superseded, so it cannot be stopped\n" + hintTaken,
		"start":   "! apply 1 is superseded, so it cannot be started\n" + hintTaken,
		"release": "apply 1 is superseded and holds nothing -> superseded",
		"cancel":  "! apply 1 is superseded, so it cannot be cancelled\n" + hintTaken,
		"retry":   "! apply 1 is superseded, so it cannot be tried again\n" + hintTaken,
	},
	"failed in vain": {
		"pause":   "! apply 1 is failed, so it cannot be paused\nNothing more comes of it. " + hintHolds,
		"stop":    "! apply 1 is failed, so it cannot be stopped\nNothing more comes of it. " + hintHolds,
		"start":   "! apply 1 is failed, so it cannot be started\nNothing more comes of it. " + hintHolds,
		"release": "6 objects in 2 targets of apply 1 follow their rows again -> failed",
		"cancel":  "! apply 1 is failed, so it cannot be cancelled\nNothing more comes of it. " + hintHolds,
		"retry":   nothingToTry + " -> failed",
	},
	"cancelled": {
		"pause":   "! apply 1 is cancelled, so it cannot be paused\n" + hintGone,
		"stop":    "! apply 1 is cancelled, so it cannot be stopped\n" + hintGone,
		"start":   "! apply 1 is cancelled, so it cannot be started\n" + hintGone,
		"release": "9 objects in 3 targets of apply 1 follow their rows again -> cancelled",
		"cancel":  "apply 1 is cancelled already -> cancelled",
		"retry":   "! apply 1 is cancelled, so it cannot be tried again\n" + hintGone,
	},
}

// C63: every command in every state.
func TestApplyCommandsInEveryState(t *testing.T) {
	t.Parallel()
	for state, answers := range commandAnswers {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			require.Equal(t, 1, inState[state](t, db))
			require.Len(t, answers, 6)
			for command, answer := range answers {
				tx, err := db.Pool.Begin(t.Context())
				require.NoError(t, err)
				call := fmt.Sprintf("SELECT reconciler.apply_%s(1)", command)
				if refused, is := strings.CutPrefix(answer, "! "); is {
					require.Equal(t, refused, refusal(t, tx, call), command)
					require.NoError(t, tx.Rollback(t.Context()))
					continue
				}
				says, becomes, _ := strings.Cut(answer, " -> ")
				require.Equal(t, []string{says}, lines(t, tx, call), command)
				require.Equal(t, []string{becomes}, lines(t, tx, "SELECT state FROM reconciler.applies WHERE id = 1"), command)
				// Once more: nothing changes.
				before := lines(t, tx, "SELECT target, state, is_open FROM reconciler.operations WHERE apply_id = 1 ORDER BY target")
				if _, err := tryLines(t, tx, call); err == nil {
					require.Equal(t, before, lines(t, tx, "SELECT target, state, is_open FROM reconciler.operations WHERE apply_id = 1 ORDER BY target"), command)
					require.Equal(t, []string{becomes}, lines(t, tx, "SELECT state FROM reconciler.applies WHERE id = 1"), command)
				}
				require.NoError(t, tx.Rollback(t.Context()))
			}
			db.checkApplies(t)
		})
	}
}

// F43, F184: every command that is proposed in a state does something, and only apply_release opens gates of targets that have not begun.
func TestF43_EveryProposedCommandDoesSomething(t *testing.T) {
	t.Parallel()
	proposed := regexp.MustCompile(`SELECT reconciler\.apply_[a-z]+\(1\);`)
	const seen = "SELECT o.target, o.state, o.is_open, a.wish, a.released FROM reconciler.operations o JOIN reconciler.applies a ON a.id = o.apply_id WHERE a.id = 1 ORDER BY 1"
	const opened = "SELECT target FROM reconciler.operations WHERE apply_id = 1 AND is_open AND target <> 'asia'"
	for state, bring := range inState {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			db := newAppliesDB(t)
			bring(t, db)
			next := db.next(t, 1)
			for _, command := range proposed.FindAllString(next, -1) {
				tx := db.inTx(t, "SELECT 1")
				before := lines(t, tx, seen)
				lines(t, tx, command)
				require.NotEqual(t, before, lines(t, tx, seen), "%s: %s", state, command)
				if !strings.Contains(command, "release") {
					require.Empty(t, lines(t, tx, opened), "%s: %s", state, command)
				}
				require.NoError(t, tx.Rollback(t.Context()))
			}
		})
	}
}

func TestApplyCommandsNameWhatThereIs(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	require.Equal(t, "there is no apply 7\nThere is none yet: SELECT reconciler.begin_apply(...) in a transaction makes one of its changes.", refusal(t, db.Pool, "SELECT reconciler.apply_stop(7)"))
	db.roll(t, "'release 42'")
	require.Equal(t, "there is no apply 7\nThe newest: 1 (release 42)", refusal(t, db.Pool, "SELECT reconciler.apply_stop(7)"))
	require.Equal(t, "there is no apply NULL\nThe newest: 1 (release 42)", refusal(t, db.Pool, "SELECT reconciler.apply_cancel(NULL)"))
	require.Equal(t, "apply 1 has nothing to do with target 'ue'\nIts targets: asia, eu, us", refusal(t, db.Pool, "SELECT reconciler.apply_retry(1, 'ue')"))
}

func TestApplyCommandsAreLogged(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	id := db.roll(t, "'release 42'")
	role, conn := db.roleOf(t, "operator")
	lines(t, conn, fmt.Sprintf("SELECT reconciler.apply_pause(%d, 'lunch')", id))
	lines(t, conn, fmt.Sprintf("SELECT reconciler.apply_release(%d)", id))
	require.Equal(t, []string{
		"2 | postgres | open |  |  | ", "3 | " + role + " | pause | lunch |  | ", "4 | " + role + " | state |  | pending | paused",
		"5 | " + role + " | release |  |  | ", "6 | " + role + " | state |  | paused | pending",
	}, db.lines(t, "SELECT version, by, what, why, was, state FROM reconciler.apply_log ORDER BY id"))
	require.Equal(t, "6", db.line(t, "SELECT version FROM reconciler.apply_status"))
}

func TestApplyBeginRefusesNonsense(t *testing.T) {
	t.Parallel()
	db := newAppliesDB(t)
	for arguments, says := range map[string]string{
		"''":                               "title must have 1 to 200 characters, not 0",
		"NULL":                             "title must have 1 to 200 characters, not 0",
		"'x', 'stop'":                      "on_failure must be 'halt', 'continue' or 'pause', not 'stop'",
		"'x', NULL":                        "on_failure must be 'halt', 'continue' or 'pause', not NULL",
		"'x', strategy => 'all'":           "strategy must be 'rolling', 'parallel' or 'waves', not 'all'",
		"'x', strategy => 'waves'":         `strategy 'waves' needs waves, such as '[["eu"], ["us", "asia"]]'`,
		"'x', soak => '-1 s'":              "soak must be an interval from zero to a year, not '-00:00:01'",
		"'x', attempts => 0":               "attempts must be 1 to 1000, not 0",
		"'x', labels => '[]'":              "labels must be a JSON object, not []",
		`'x', waves => '{}'`:               `waves must be a list of lists of targets, such as '[["eu"], ["us", "asia"]]', not {}`,
		`'x', waves => '["eu"]'`:           `waves must be a list of lists of targets, such as '[["eu"], ["us", "asia"]]', not ["eu"]`,
		`'x', waves => '[["eu"], [1]]'`:    `waves must be a list of lists of targets, such as '[["eu"], ["us", "asia"]]', not [["eu"], [1]]`,
		`'x', waves => '[["eu"], ["eu"]]'`: "waves name target 'eu' twice",
	} {
		require.Equal(t, says, refusal(t, db.Pool, "SELECT reconciler.begin_apply("+arguments+")"), arguments)
	}
}
