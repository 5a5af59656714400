package main

// Packages whose tests notice.
const (
	applyTests   = "./internal/apply"
	guardTests   = "./internal/guard"
	desiredTests = "./internal/desired"
	queueTests   = "./internal/queue"
	leaseTests   = "./internal/lease"
	outboxTests  = "./internal/outbox"
	leaderTests  = "./internal/leader"
	rowTests     = "./test/rows"
	serverTests  = "./internal/server"
	watchTests   = "./internal/watch"
	clientTests  = "./client"
)

// Files that mutants edit.
const (
	decideFile  = "internal/apply/decide.go"
	queueFile   = "internal/queue/queue.go"
	flightFile  = "internal/queue/flight.go"
	windowFile  = "internal/queue/window.go"
	readerFile  = "internal/apply/reader.go"
	parkingFile = "internal/apply/parking.go"
	retrierFile = "internal/apply/retrier.go"
	settlerFile = "internal/apply/settler.go"
	trackerFile = "internal/apply/tracker.go"
	guardFile   = "internal/guard/guard.go"
	callerFile  = "internal/apply/caller.go"
	tickerFile  = "internal/leader/ticker.go"
	scanFile    = "internal/sync/scan.go"
	listingFile = "internal/sync/listing.go"
	syncRunFile = "internal/sync/run.go"
	desiredRead = "internal/desired/read.go"
	tickSQL     = "internal/store/tick.sql.go"
	leaseSQL    = "internal/store/lease.sql.go"
	captureSQL  = "db/migrations/00003_capture.sql"
	cursorSQL   = "db/migrations/00005_cursor.sql"
	settleSQL   = "db/migrations/00011_settle.sql"
	appliesSQL  = "db/migrations/00012_applies.sql"
	streamsSQL  = "db/migrations/00013_streams.sql"

	clientQueueFile    = "client/queue.go"
	clientTaskFile     = "client/task.go"
	clientExistingFile = "client/existing.go"
	clientControlsFile = "client/controls.go"
	clientSnapshotFile = "client/snapshot.go"
	clientSaverFile    = "client/saver.go"
)

var mutants = []Mutant{
	// I1: no change is lost.
	{
		Name: "cursor-ignores-objects", Guards: "I1", Removed: "the cursor stops before a page with objects that are not recorded",
		Edits:   []Edit{{trackerFile, "t.pages[n].handed && len(t.pages[n].objects) == 0 {", "t.pages[n].handed {"}},
		Package: applyTests, Run: "^(TestCursorMovesOverSettledPagesOnly|TestCursorIsTheLongestSettledPrefix)$",
	},
	{
		Name: "max-id-tick", Guards: "I1", Removed: "a tick covers transactions that were in progress at the tick before",
		Edits:   []Edit{{tickSQL, "x WHERE pg_visible_in_snapshot(x.xip, pg_current_snapshot())", "x WHERE false AND pg_visible_in_snapshot(x.xip, pg_current_snapshot())"}},
		Package: outboxTests, Run: "^TestCursorOverCommitsOutOfOrder$",
	},
	{
		Name: "max-id-batch", Guards: "I1", Removed: "a batch over several ticks reads transactions that were in progress at its start",
		Edits:   []Edit{{tickSQL, "AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x", "AND false AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x"}},
		Package: outboxTests, Run: "^TestCursorReadsOnFromAnyTick$",
	},
	{
		Name: "no-wake", Guards: "I1", Removed: "writers wake a leader that sleeps",
		Edits:   []Edit{{captureSQL, "        PERFORM pg_catalog.pg_notify('reconciler_wake', '');\n", "        NULL;\n"}},
		Package: outboxTests, Run: "^TestCaptureNotifiesASleepingLeader$",
	},
	{
		Name: "doze-ends-early", Guards: "I1", Removed: "the doze lasts until every transaction has ended that may have seen the sleep lock free",
		Edits:   []Edit{{tickerFile, "\tif inProgress {\n\t\treturn nil\n\t}\n", "\t_ = inProgress\n"}},
		Package: leaderTests, Run: "^TestTransactionOlderThanTheSleepIsFoundByTheDoze$",
	},
	{
		Name: "retention-without-interest", Guards: "I1", Removed: "the outbox keeps what a consumer has not read",
		Edits:   []Edit{{cursorSQL, "IF NOT EXISTS (SELECT FROM reconciler.interest() AS s WHERE reconciler.unread(part, s)) AND", "IF true AND"}},
		Package: leaderTests, Run: "^TestRowsWithoutARevisionStay$",
	},
	{
		Name: "takeover-forces-nothing", Guards: "I1", Removed: "after a crash the former owner's last events force calls and deletes",
		Edits:   []Edit{{readerFile, "{ return cur.base.Revision < r.replay }", "{ return cur.base.Revision < r.replay && false }"}},
		Package: rowTests, Run: "^TestUncleanTargetGetsDeletesOfWhatTheLedgerDoesNotKnow$",
	},
	{
		Name: "unknown-is-absent", Guards: "C74", Removed: "an object that the ledger does not know is deleted when a change is read again after a crash",
		Edits:   []Edit{{decideFile, "case e == nil && (!l.item.Force || l.item.Due), ", "case e == nil, "}},
		Package: applyTests, Run: "^TestDecisionsAboutUnwantedObjects$",
	},

	// I2: an open transaction delays its own changes only.
	{
		Name: "ticks-wait-for-transactions", Guards: "I2", Removed: "ticks are made while transactions are open",
		Edits: []Edit{{
			tickSQL, "AND l.owner = $2::uuid AND l.term = $3::bigint)\n",
			"AND l.owner = $2::uuid AND l.term = $3::bigint)\n      AND pg_snapshot_xmin(pg_current_snapshot()) = pg_snapshot_xmax(pg_current_snapshot())\n",
		}},
		Package: rowTests, Run: "^TestOpenTransactionDelaysItsOwnChangesOnly$",
	},

	// I3: no call has an older spec than one before, and no object has two calls at once.
	{
		Name: "doubled-enqueue", Guards: "I3", Removed: "an object in flight is not handed out again",
		Edits:   []Edit{{queueFile, "if f, ok := q.flying[it.ObjectID]; ok {", "if f, ok := q.flying[it.ObjectID]; ok && false {"}},
		Package: queueTests, Run: "^(TestObjectInFlightIsNotTakenAgain|TestEveryItemOfARunEndsOnce)$",
	},
	{
		Name: "change-during-call-lost", Guards: "I3", Removed: "a change during a call leads to another one",
		Edits:   []Edit{{flightFile, "\tif next != nil {\n\t\tq.appendLocked(next)\n\t}\n", "\t_ = next\n"}},
		Package: queueTests, Run: "^(TestObjectInFlightIsNotTakenAgain|TestEveryItemOfARunEndsOnce)$",
	},
	{
		Name: "old-rows-called", Guards: "I3", Removed: "a row that was read long ago is read again before its call",
		Edits:   []Edit{{callerFile, " || time.Since(l.readAt) > staleAfter || ", " || "}},
		Package: applyTests, Run: "^TestOldRowIsReadAgainBeforeItsCall$",
	},

	// I4: one bad object hurts itself only.
	{
		Name: "slow-holds-cursor", Guards: "I4", Removed: "slow objects do not hold the cursor for long",
		Edits:   []Edit{{settlerFile, "\tif s.breaker.IsOpen() {\n\t\treturn nil\n\t}\n\tlate,", "\tif true {\n\t\treturn nil\n\t}\n\tlate,"}},
		Package: applyTests, Run: "^TestSlowObjectIsRecordedUnderConstantLoad$",
	},
	{
		Name: "unreadable-row-spoils-its-table", Guards: "I4", Removed: "reading one row evaluates no other",
		Edits:   []Edit{{desiredRead, "	if alone {\n", "	if false {\n"}},
		Package: desiredTests, Run: "^TestPagesOverRowsThatCannotBeEvaluated$",
	},

	// I5: a delete needs proof.
	{
		Name: "unreadable-is-unwanted", Guards: "I5", Removed: "a row that cannot be read is no reason to delete",
		Edits:   []Edit{{decideFile, "if l.row.Err != nil && !l.drain {\n\t\treturn decideSpoiled", "if false {\n\t\treturn decideSpoiled"}},
		Package: applyTests, Run: "^TestDecisionsAboutSpoiledRows$",
	},
	{
		Name: "cut-listing-complete", Guards: "I5", Removed: "a listing that breaks off ends the sync",
		Edits:   []Edit{{listingFile, "\t\t\treturn &ListError{Target: s.Target, Text: err.Error()}\n", "\t\t\tbreak\n"}},
		Package: rowTests, Run: "^TestFailedSyncDeletesNothing$",
	},

	// I6: no mass delete by accident.
	{
		Name: "guard-lets-each-pass", Guards: "I6", Removed: "the guard counts single deletes",
		Edits:   []Edit{{guardFile, "if g.remainingLocked() < n {", "if false {"}},
		Package: guardTests, Run: "^(TestGuardLetsPassWhatItsLimitsSay|TestGuardHoldsInEveryWindow)$",
	},
	{
		Name: "guard-lets-lots-pass", Guards: "I6", Removed: "the guard decides on parked deletes",
		Edits:   []Edit{{guardFile, "if n+held > g.remainingLocked() {", "if false {"}},
		Package: guardTests, Run: "^TestGuardDecidesOnManyAtOnce$",
	},
	{
		Name: "counts-know-nothing-of-each-other", Guards: "I6", Removed: "deletes of a count are decided on with those that another holds",
		Edits:   []Edit{{parkingFile, "min(count.Elsewhere, max(0, found-count.Parked))", "0"}},
		Package: applyTests, Run: "^TestDeletesThatTwoCountsShareAreDecidedOnTogether$",
	},
	{
		Name: "due-deletes-are-not-counted", Guards: "I6", Removed: "deletes that a pause has held are counted when it ends",
		Edits:   []Edit{{retrierFile, "d.parking.countDeletes(ctx, uncounted, full, &d.batch)", "d.parking.countDeletes(ctx, nil, full, &d.batch)"}},
		Package: applyTests, Run: "^TestDueDeletesAreCountedBeforeTheFirst$",
	},
	{
		Name: "sync-parks-nothing", Guards: "I6", Removed: "a sync parks its deletes until all are counted",
		Edits:   []Edit{{syncRunFile, "park := f.Kind == KindTombstone || f.Kind == KindOrphan", "park := false"}},
		Package: rowTests, Run: "^TestGuardHoldsMassDeletes$",
	},

	// I7: nothing is forgotten.
	{
		Name: "failed-delete-forgotten", Guards: "I7", Removed: "a failed delete keeps the ledger row",
		Edits:   []Edit{{decideFile, "if out.Verdict == driver.VerdictDone {\n\t\tif act == actDelete {", "if out.Verdict == driver.VerdictDone || act == actDelete {\n\t\tif act == actDelete {"}},
		Package: applyTests, Run: "^TestOutcomeOfADelete$",
	},
	{
		Name: "first-calls-unflushed", Guards: "I7", Removed: "the record of a first call that no event names survives a crash of the server",
		Edits:   []Edit{{settleSQL, "CASE WHEN record_first_calls.flush THEN 'on' ELSE 'off' END", "'off'"}},
		Package: desiredTests, Run: "^TestFirstCallsThatNoEventTellsOfAreFlushed$",
	},

	{
		Name: "captured-protection-unread", Guards: "I6", Removed: "a row that became protected after it was read protects its object",
		Edits:   []Edit{{desiredRead, "\tif !r.protects {\n\t\treturn protect", "\tif true {\n\t\treturn protect"}},
		Package: rowTests, Run: "^TestF138_ProtectionIsThatOfTheLastRow$",
	},
	{
		Name: "captured-protection-stale", Guards: "I6", Removed: "a look at the row after its last captured change knows better",
		Edits:   []Edit{{settleSQL, "ORDER BY k.revision DESC LIMIT 1)), false) THEN newest.protect END;", "ORDER BY k.revision DESC LIMIT 1)) AND false, false) THEN newest.protect END;"}},
		Package: rowTests, Run: "^TestF138_ASyncKnowsBetterThanAnOlderChange$",
	},
	{
		Name: "untrack-not-approved", Guards: "I1", Removed: "the deletes of untrack() pass the guard",
		Edits:   []Edit{{desiredRead, "row.Ledger.Approved = true // by untrack()", ""}},
		Package: rowTests, Run: "^TestF100_UntrackStandsWhenTheCallUnderWayFails$",
	},
	{
		Name: "retry-overwritten", Guards: "I1", Removed: "a result of a look from before leaves retry() as it is",
		Edits:   []Edit{{settleSQL, "        WHERE l.generation = excluded.generation;", "        ;"}},
		Package: applyTests, Run: "^TestF100_RetryOutlivesTheCallUnderWay$",
	},

	// I8: writers are safe.
	{
		Name: "expressions-unguarded", Guards: "I8", Removed: "expressions that fail on a row do not fail the write",
		Edits: []Edit{{
			captureSQL, "    EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN\n        \"{old}\" := NULL; \"{new}\" := NULL;",
			"    EXCEPTION WHEN SQLSTATE 'ZZ000' THEN\n        \"{old}\" := NULL; \"{new}\" := NULL;",
		}},
		Package: outboxTests, Run: "^TestCaptureOfRowThatCannotBeEvaluated$",
	},
	{
		Name: "always-notify", Guards: "I8", Removed: "writers do not notify a leader that is awake",
		Edits:   []Edit{{captureSQL, "    IF NOT (pg_catalog.pg_try_advisory_lock_shared(%1$s)", "    IF true OR NOT (pg_catalog.pg_try_advisory_lock_shared(%1$s)"}},
		Package: outboxTests, Run: "^(TestCaptureNotifiesASleepingLeader|TestCaptureProbesWithoutHoldingTheLock)$",
	},

	// I9: everything is bounded.
	{
		Name: "queue-unbounded", Guards: "I9", Removed: "the queue has a bound",
		Edits:   []Edit{{queueFile, "if (!ok || it.Lane < old.Lane) && q.size[it.Lane] >= queueRows {", "if false {"}},
		Package: queueTests, Run: "^(TestFullLaneMakesItsSourceWait|TestPushAndTakeEndWithTheirContext)$",
	},
	{
		Name: "outbox-unbounded", Guards: "I9", Removed: "the outbox has a maximum number of rows",
		Edits:   []Edit{{cursorSQL, "IF (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows\n", "IF false AND (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows\n"}},
		Package: leaderTests, Run: "^TestConsumerBeyondMaxRowsIsCutOff$",
	},

	// I10: one owner.
	{
		Name: "fence-open", Guards: "I10", Removed: "fence() refuses a deposed owner",
		Edits: []Edit{{
			cursorSQL, "        RAISE EXCEPTION 'target % was taken over by another process: term % is over', fence.target_id, fence.term USING ERRCODE = 'RC001';\n",
			"        NULL;\n",
		}},
		Package: leaseTests, Run: "^TestFence$",
	},
	{
		Name: "results-unfenced", Guards: "I10", Removed: "results are written behind fence()",
		Edits:   []Edit{{settleSQL, "paused boolean := reconciler.fence(settle.target_id, settle.owner, settle.term);", "paused boolean := false;"}},
		Package: rowTests, Run: "^TestDeposedOwnerWritesNothing$",
	},
	{
		Name: "lease-not-asked", Guards: "I10", Removed: "a call waits until the lease outlives it",
		Edits:   []Edit{{callerFile, "if c.cfg.Grant.Allows(c.cfg.Timeout) && ctx.Err() == nil {", "if ctx.Err() == nil {"}},
		Package: applyTests, Run: "^TestNoCallBeginsThatMayOutliveTheLease$",
	},
	{
		Name: "deposed-leader-ticks", Guards: "I10", Removed: "a deposed leader makes no revision",
		Edits:   []Edit{{tickSQL, "WHERE l.name = 'tick' AND l.owner = $2::uuid AND l.term = $3::bigint)\n", "WHERE l.name = 'tick' OR l.owner = $2::uuid AND l.term = $3::bigint)\n"}},
		Package: leaderTests, Run: "^TestDeposedLeaderMakesNoRevision$",
	},
	{
		Name: "crash-is-clean", Guards: "I10", Removed: "a target that was taken over from a dead owner is not clean",
		Edits:   []Edit{{leaseSQL, "clean = t.clean AND t.owner IS NULL,", "clean = t.clean,"}},
		Package: leaseTests, Run: "^TestTakeover$",
	},

	// I11: live changes come first, and a sync has its share.
	{
		Name: "sync-fills-window", Guards: "I11", Removed: "a part of the window is kept for live changes",
		Edits:   []Edit{{windowFile, "sync = min(free-live, max(0, q.window-kept-q.inFlight[LaneSync]))", "sync = free - live"}},
		Package: queueTests, Run: "^TestLanesHaveTheirShares$",
	},
	{
		Name: "live-always-first", Guards: "I11", Removed: "each fourth call is a sync's, if it has one",
		Edits:   []Edit{{callerFile, "if n%4 == 3 && c.trySync(ctx, &sync) || n%4 != 3 && c.tryLive(ctx, &live) {", "if c.tryLive(ctx, &live) {"}},
		Package: applyTests, Run: "^TestFastLiveChangesLeaveASyncItsShare$",
	},

	// I12: a restore is noticed.
	{
		Name: "restore-unnoticed", Guards: "I12", Removed: "adopt() finds a restored database",
		Edits: []Edit{{
			cursorSQL, "IS DISTINCT FROM (here.system, here.timeline, here.database, here.table_oid)\n            AND (state",
			"IS DISTINCT FROM (here.system, here.timeline, here.database, here.table_oid)\n            AND false AND (state",
		}},
		Package: serverTests, Run: "^TestRestoredDatabaseIsNoticed$",
	},

	// Applies: one target after the other.
	{
		Name: "gate-ignored", Guards: "applies", Removed: "an object of an apply keeps what it has until its target's turn comes",
		Edits:   []Edit{{decideFile, "return l.row.Task != nil && !l.row.Task.Open }", "return false && l.row.Task != nil }"}},
		Package: serverTests, Run: "^TestApplyRollsOverTheTargets$",
	},
	{
		Name: "claim-does-not-wait", Guards: "applies", Removed: "a target waits for those before it",
		Edits:   []Edit{{appliesSQL, "ELSIF a.strategy <> 'parallel' AND f.ordinal < o.ordinal THEN", "ELSIF false AND f.ordinal < o.ordinal THEN"}},
		Package: applyTests, Run: "^TestApplyRolls$",
	},

	// Reports: the newest wins.
	{
		Name: "late-report-counts", Guards: "reports", Removed: "a report that is older than an inventory changes nothing",
		Edits:   []Edit{{streamsSQL, "IF r.session = report.session AND report.seq < r.inventory_seq THEN", "IF false THEN"}},
		Package: watchTests, Run: "^TestC4_NewestReportWinsUnderReordering$",
	},
	{
		Name: "reports-beside-each-other", Guards: "reports", Removed: "reports on one stream wait for each other",
		Edits:   []Edit{{streamsSQL, "WHERE x.target_id = report.target_id FOR NO KEY UPDATE;", "WHERE x.target_id = report.target_id;"}},
		Package: watchTests, Run: "^TestReportsOfTwoSessionsFollowEachOther$",
	},
	{
		Name: "early-controller", Guards: "client", Removed: "after a reset no handler begins before the snapshot has ended",
		Edits:   []Edit{{clientQueueFile, "(q.closed != 0 || len(q.ready) == 0)", "(len(q.ready) == 0)"}},
		Package: clientTests, Run: "^(TestNothingRunsBeforeTheEndOfTheSnapshot|TestNothingRunsDuringAReset)$",
	},
	{
		Name: "unguarded-controller", Guards: "client", Removed: "deletes from absence that MaxDeletes holds wait",
		Edits:   []Edit{{clientTaskFile, "kept || gone.held {", "kept {"}},
		Package: clientTests, Run: "^TestDeletesFromAbsenceWaitForApproval$",
	},
	{
		Name: "absence-under-a-handler", Guards: "client", Removed: "no object goes under its handler before the guard has counted",
		Edits:   []Edit{{clientSnapshotFile, "if !c.queue.settle(ctx, gone) {", "if c.queue == nil {"}},
		Package: clientTests, Run: "^TestRunningHandlerSeesNoAbsenceBeforeTheGuard$",
	},
	{
		Name: "unconfirmed-orphans", Guards: "client", Removed: "a list of the far side is compared with what the server has confirmed",
		Edits: []Edit{
			{clientSnapshotFile, "	if !i.confirmed {\n", "	if false {\n"},
			{clientExistingFile, "i.snapshot || !i.confirmed || gone", "i.snapshot || gone"},
		},
		Package: clientTests, Run: "^TestExistingIsComparedWithWhatTheServerHasConfirmed$",
	},
	{
		Name: "write-behind", Guards: "client", Removed: "no handler begins for an object that the store does not have",
		Edits:   []Edit{{clientSaverFile, "return i.dirty[r] || i.writing[r] }", "return false && (i.dirty[r] || i.writing[r]) }"}},
		Package: clientTests, Run: "^(TestNothingIsForgottenWhereverAProcessIsKilled|TestWriteAheadWaitsForTheStore)$",
	},
	{
		Name: "hasty-agent", Guards: "agent", Removed: "an agent waits while calls of a killed one may be under way",
		Edits:   []Edit{{"internal/agent/agent.go", "if a.identity.killed {", "if a.identity.killed && false {"}},
		Package: "./internal/agent", Run: "^TestAgentCallsNothingWhileCallsOfAKilledProcessMayBeUnderWay$",
	},
	{
		Name: "forgotten-pause", Guards: "client", Removed: "a process that restarts without the server obeys the pause",
		Edits:   []Edit{{clientSaverFile, "i.obey(h.Controls)", "i.controls = h.Controls"}},
		Package: clientTests, Run: "^TestPausedTargetIsLeftAlone$",
	},
	{
		Name: "resync-by-halves", Guards: "client", Removed: "a resync lasts when the process ends before it has made all of it",
		Edits:   []Edit{{clientControlsFile, "i.epoch++", ""}},
		Package: clientTests, Run: "^TestResyncForgetsRememberedResults$",
	},
	{
		Name: "forgotten-deletes", Guards: "client", Removed: "a store has the deletes that are still to be made",
		Edits:   []Edit{{clientSaverFile, "		rec.gone = &t\n", "		_ = t\n"}},
		Package: clientTests, Run: "^(TestStoreFindsWhatWasDeletedWhileTheProcessWasDown|TestHeldDeletesStayHeld)$",
	},
}
