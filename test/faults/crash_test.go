package faults_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/crash"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// crashCase is how a point is reached.
type crashCase struct {
	visit int // the one to die at; 0: the first
	// before prepares what the process finds that is to die.
	before func(w *crashWorld)
	// live is what happens once it runs and has synced both targets; nil: it dies before that.
	live func(w *crashWorld, p *crashProcess)
	// next is what is to be seen of the process after it; nil: nothing but that everything comes to rest.
	next func(w *crashWorld)
}

// I1, I5, I7: wherever the process dies, in the end the targets are the rows, and the ledger is what they have.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	for _, p := range crash.All() {
		if slices.Contains(agentPoints, p.Name) {
			continue // see TestAgentDiesAtAnyStep
		}
		way, ok := crashCases[p.Name]
		inMigration := p.Name == crash.MigrationApplied || p.Name == crash.MigrationsDone
		require.True(t, ok || inMigration, "nothing reaches this point: %s", p.Where)
		if !pgtest.Long && !slices.Contains(crashBrief, p.Name) {
			continue
		}
		t.Run(string(p.Name), func(t *testing.T) {
			t.Parallel()
			if inMigration {
				newCrashWorld(t, pgtest.Empty(t)).diesInMigration(p.Name)
				return
			}
			w := newCrashWorld(t, pgtest.New(t))
			w.track()
			w.dies(p.Name, way)
			if way.next != nil {
				way.next(w)
			}
			w.recovers()
		})
	}
}

// crashBrief are the points at which processes die outside the long tier: at least one for each mechanism that recovers.
var crashBrief = []crash.Name{
	crash.HandingOut,       // the cursor trails the queue
	crash.AfterCall,        // the ledger does not know of a call
	crash.BeforeSettle,     // results and cursor are written together
	crash.LateRecorded,     // the cursor passes what takes long
	crash.DeletesParked,    // the guard decides again
	crash.SyncPage,         // a sync begins again
	crash.BeforeClean,      // a target is clean only after its sync
	crash.ExpandWritten,    // dependent objects are marked with their cursor
	crash.OperationClaimed, // the next owner goes on with a rollout
	crash.ReportRead,       // a client sends a report again
	crash.ReportWritten,    // a report that is sent again counts once
	crash.MigrationApplied, // migrations go on where they ended
}

var crashCases = map[crash.Name]crashCase{
	crash.LeaderTaken:      {before: crashFilled},
	crash.AfterTick:        {live: crashLive},
	crash.CursorStarted:    {before: crashFilled},
	crash.BeforeHandOut:    {live: crashLive},
	crash.HandingOut:       {visit: 7, live: crashLive},
	crash.BeforeCall:       {visit: 5, live: crashLive},
	crash.AfterCall:        {visit: 5, live: crashLive},
	crash.BeforeSettle:     {visit: 2, before: crashFilled},
	crash.AfterSettle:      {visit: 2, before: crashFilled},
	crash.LateRecorded:     {live: crashSlow},
	crash.DeletesParked:    {before: crashSilent},
	crash.DeletesDecided:   {before: crashSilent},
	crash.SyncPage:         {visit: 2, before: crashMany},
	crash.SyncRowsDone:     {visit: 2, before: crashFilled},
	crash.SyncUnfinished:   {before: crashFilled},
	crash.BeforeClean:      {before: crashUnclean},
	crash.TargetTaken:      {before: crashUnclean},
	crash.BeforeRelease:    {live: crashDrained},
	crash.AfterRelease:     {live: crashDrained},
	crash.OutboxRetained:   {before: crashRotated},
	crash.ExpandRead:       {live: crashLive},
	crash.ExpandWritten:    {live: crashLive},
	crash.ExpandCommitted:  {live: crashLive},
	crash.FileWritten:      {visit: 3, live: crashLive},
	crash.FileRenamed:      {visit: 3, live: crashLive},
	crash.FileRemoved:      {live: crashDeleted},
	crash.BeforeOpen:       {before: crashSettled, live: crashRollout, next: (*crashWorld).rolledOut},
	crash.OpenPiece:        {before: crashSettled, live: crashLarge, next: (*crashWorld).rolledOut},
	crash.AfterOpen:        {before: crashSettled, live: crashRollout, next: (*crashWorld).rolledOut},
	crash.OperationClaimed: {visit: 2, before: crashSettled, live: crashRollout, next: (*crashWorld).rolledOut},
	crash.TasksRecorded:    {visit: 2, before: crashSettled, live: crashRollout, next: (*crashWorld).rolledOut},
	crash.BeforeConfirm:    {before: crashSettled, live: crashStopping, next: crashStarted},
	crash.ReportRead:       {before: crashFollowed, live: crashReported, next: reportedOnce},
	crash.ReportWritten:    {before: crashFollowed, live: crashReported, next: reportedOnce},
}

func crashFilled(w *crashWorld) { w.fill() }

func crashLive(w *crashWorld, _ *crashProcess) { w.fill() }

// crashSlow has an endpoint that does not answer, so that objects are recorded as in hand.
func crashSlow(w *crashWorld, _ *crashProcess) {
	w.endpoint.hold()
	w.fill()
}

// crashMany has rows for three pages of one sync, which have 2,000 each.
func crashMany(w *crashWorld) {
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'us' FROM generate_series(1, 4100) AS i`)
}

// crashUnclean leaves a process behind that died with calls that the ledger does not know.
func crashUnclean(w *crashWorld) {
	w.dies(crash.AfterCall, crashCase{visit: 5, before: crashFilled})
	w.exec(`DELETE FROM apps WHERE id % 4 = 0`)
}

// crashSilent deletes rows behind the triggers' back: a sync finds their objects.
func crashSilent(w *crashWorld) {
	w.fill()
	p := w.start("", 0, "run").synced()
	w.wait()
	p.stop()
	w.exec(`SET session_replication_role = replica; DELETE FROM apps WHERE id % 4 = 1; RESET session_replication_role`)
}

// crashRotated lets retention move on from the part of the outbox in use at its first look.
func crashRotated(w *crashWorld) {
	w.fill()
	w.exec(`UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
}

// crashDrained ends the process in good order, after some work.
func crashDrained(w *crashWorld, p *crashProcess) {
	w.fill()
	w.wait()
	p.signal(syscall.SIGTERM)
}

func crashDeleted(w *crashWorld, _ *crashProcess) {
	w.fill()
	w.wait()
	w.exec(`DELETE FROM apps WHERE id <= 10`)
}

// dies runs the daemon until it has died at a point.
func (w *crashWorld) dies(at crash.Name, way crashCase) {
	w.t.Helper()
	if way.before != nil {
		way.before(w)
	}
	visit := max(way.visit, 1)
	require.NoError(w.t, os.RemoveAll(w.path("crashed")))
	p := w.start(at, visit, "run")
	if way.live != nil {
		p.synced()
		way.live(w, p)
	}
	w.died(p, at, visit)
	w.endpoint.release()
	w.expire()
}

// died says that a process has died at its point, and nowhere else.
func (w *crashWorld) died(p *crashProcess, at crash.Name, visit int) {
	w.t.Helper()
	end := p.ended()
	require.True(w.t, end.Signaled() && end.Signal() == syscall.SIGKILL, "it ended in another way: %v", end)
	fired, err := os.ReadFile(w.path("crashed"))
	require.NoError(w.t, err)
	require.Equal(w.t, fmt.Sprintf("%s:kill:%d\n", at, visit), string(fired))
}

// recovers changes the rows while nothing runs, starts a process that does not die, and looks at everything.
func (w *crashWorld) recovers() {
	w.t.Helper()
	w.change()
	p := w.start("", 0, "run")
	w.wait()
	want := w.want()
	w.same()
	require.Equal(w.t, fmt.Sprint(len(want["eu"])+len(want["us"])), w.text(`SELECT count(*) FROM reconciler.objects`), "VIOLATION: the ledger has other objects than the rows")
	require.Equal(w.t, "0", w.text(`SELECT count(*) FROM reconciler.objects WHERE state <> 'applied'`), "VIOLATION: objects are not applied")
	w.reloaded()
	p.stop()
	require.Equal(w.t, "0", w.text(`SELECT count(*) FROM reconciler.targets WHERE owner IS NOT NULL`))
	w.eventually("no lock is left", func() error {
		held := w.text(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
		if held != "0" {
			return errors.New(held + " advisory locks")
		}
		return nil
	})
}

// same compares the targets with the rows.
func (w *crashWorld) same() {
	w.t.Helper()
	want := w.want()
	require.Equal(w.t, want["eu"], w.files(), "VIOLATION: files differ from the rows")
	have, wrong := w.endpoint.has()
	require.Equal(w.t, want["us"], have, "VIOLATION: the endpoint differs from the rows")
	require.Empty(w.t, wrong, "VIOLATION: stale calls")
}

// reloaded waits until the reload command has run after the last change.
func (w *crashWorld) reloaded() {
	w.t.Helper()
	lines := slices.Sorted(maps.Values(w.want()["eu"]))
	w.eventually("the files are loaded", func() error {
		loaded, err := os.ReadFile(w.path("loaded"))
		have := strings.Split(strings.TrimSuffix(string(loaded), "\n"), "\n")
		slices.Sort(have) // sort(1) knows languages
		if err == nil && !slices.Equal(lines, have) {
			err = fmt.Errorf("loaded are %q", have)
		}
		return err
	})
}

// diesInMigration kills `migrate up` between two of its steps. The next one goes on from there.
func (w *crashWorld) diesInMigration(at crash.Name) {
	w.t.Helper()
	visit := 1
	if at == crash.MigrationApplied {
		visit = 5
	}
	w.died(w.start(at, visit, "migrate", "up"), at, visit)
	if at == crash.MigrationApplied {
		require.Equal(w.t, "5", w.text(`SELECT max(version_id) FROM reconciler.goose_db_version`))
	}
	w.cli("migrate", "up")
	w.cli("migrate", "status")
	w.track()
	w.fill()
	w.recovers()
}
