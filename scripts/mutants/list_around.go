package main

// I8: writers are safe.
var writers = []Mutant{
	{
		Name: "expressions-unguarded", Invariant: "I8", Removed: "expressions that fail on a row do not fail the write",
		Edits: []Edit{{
			captureSQL, "    EXCEPTION WHEN OTHERS OR ASSERT_FAILURE THEN\n        old_ := NULL; new_ := NULL;",
			"    EXCEPTION WHEN SQLSTATE 'ZZ000' THEN\n        old_ := NULL; new_ := NULL;",
		}},
		Package: outboxTests, Run: "^TestCaptureOfRowThatCannotBeEvaluated$",
	},
	{
		Name: "no-op-updates-captured", Invariant: "I8", Removed: "updates that change nothing write nothing",
		Edits:   []Edit{{captureSQL, "record_image_ne(ROW(%s), ROW(%s))'", "record_image_ne(ROW(%s), ROW(%s)) OR true'"}},
		Package: outboxTests, Run: "^(TestCaptureOfOneRow|TestCaptureOfEveryKindOfStatement)$",
	},
	{
		Name: "no-op-updates-of-all-captured", Invariant: "I8", Removed: "the same where no column is ignored",
		Edits:   []Edit{{captureSQL, "IF pg_catalog.record_image_eq(OLD, NEW) THEN", "IF false THEN"}},
		Package: outboxTests, Run: "^TestCaptureOfNothingWithEveryColumnWatched$",
	},
	{
		Name: "ignored-columns-captured", Invariant: "I8", Removed: "updates of ignored columns write nothing",
		Edits:   []Edit{{captureSQL, "SELECT CASE WHEN watched IS NULL THEN 'pg_catalog", "SELECT CASE WHEN true THEN 'pg_catalog"}},
		Package: outboxTests, Run: "^TestCaptureOfOneRow$",
	},
	{
		Name: "probe-held", Invariant: "I8", Removed: "a writer gives the sleep lock back at once that it probed",
		Edits: []Edit{{
			captureSQL, "pg_catalog.pg_try_advisory_lock_shared(%1$s) AND pg_catalog.pg_advisory_unlock_shared(%1$s)", "pg_catalog.pg_try_advisory_xact_lock_shared(%1$s)",
		}},
		Package: outboxTests, Run: "^TestCaptureProbesWithoutHoldingTheLock$",
	},
	{
		Name: "always-notify", Invariant: "I8", Removed: "writers do not notify a leader that is awake",
		Edits:   []Edit{{captureSQL, "    IF NOT (pg_catalog.pg_try_advisory_lock_shared(%1$s)", "    IF true OR NOT (pg_catalog.pg_try_advisory_lock_shared(%1$s)"}},
		Package: outboxTests, Run: "^(TestCaptureNotifiesASleepingLeader|TestCaptureProbesWithoutHoldingTheLock)$",
	},
	{
		Name: "path-of-the-writer", Invariant: "I8", Removed: "capture code that a setting could change pins the settings",
		Edits:   []Edit{{captureSQL, "CASE WHEN reconciler.needs_settings(r) THEN reconciler.pinned_settings() ELSE '' END)", "'')"}},
		Package: outboxTests, Run: "^(TestCaptureUnderHostileSearchPath|TestCapturePinsSettingsWhereTheyMatter|TestF9_ExpressionsDoNotDependOnTheWritersSettings)$",
	},
	{
		Name: "track-waits-for-ever", Invariant: "I8", Removed: "track() bounds its wait for locks",
		Edits:   []Edit{{captureSQL, "IF before = '0' OR before::interval > '3s' THEN", "IF false THEN"}},
		Package: outboxTests, Run: "^TestTrackBoundsItsWaitForLocks$",
	},
}

// I9: everything is bounded.
var bounds = []Mutant{
	{
		Name: "queue-unbounded", Invariant: "I9", Removed: "the queue has a bound",
		Edits:   []Edit{{queueFile, "if (!ok || it.Lane < old.Lane) && q.size[it.Lane] >= queueRows {", "if false {"}},
		Package: applyTests, Run: "^(TestFullLaneMakesItsSourceWait|TestPushAndTakeEndWithTheirContext)$",
	},
	{
		Name: "pages-unbounded", Invariant: "I9", Removed: "open pages have a bound",
		Edits:   []Edit{{trackerFile, "if len(t.pages) >= openPages || t.total >= openObjects {", "if false {"}},
		Package: applyTests, Run: "^TestOpenPagesAreBounded$",
	},
	{
		Name: "sync-page-unbounded", Invariant: "I9", Removed: "a sync reads page by page",
		Edits:   []Edit{{scanFile, "const pageRows = 2000\n", "const pageRows = 2000000\n"}},
		Package: faultTests, Run: "^TestCrashPoints$/^sync-page$",
	},
	{
		Name: "page-limit-ignored", Invariant: "I9", Removed: "a page of rows, or of the ledger, has no more than it is asked for",
		Edits: []Edit{
			{syncSQL, "ORDER BY key LIMIT $4::int\n", "ORDER BY key LIMIT ($4::int + 1000000)\n"},
			{desiredPage, "ORDER BY %s%s LIMIT (SELECT $3::int))\", columns", "ORDER BY %s%s LIMIT (SELECT $3::int + 1000000))\", columns"},
		},
		Package: serverTests, Run: "^TestSyncReadsNoMoreThanAPage$",
	},
	{
		Name: "outbox-unbounded", Invariant: "I9", Removed: "the outbox has a most of rows",
		Edits:   []Edit{{cursorSQL, "IF (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows\n", "IF false AND (SELECT last_value FROM reconciler.outbox_seq) - first_ > max_rows\n"}},
		Package: outboxTests, Run: "^TestConsumerBeyondMaxRowsIsCutOff$",
	},
}

// I10: one owner.
var owners = []Mutant{
	{
		Name: "fence-open", Invariant: "I10", Removed: "fence() refuses a deposed owner",
		Edits: []Edit{{
			cursorSQL, "        RAISE EXCEPTION 'target % was taken over by another process: term % is over', fence.target_id, fence.term USING ERRCODE = 'RC001';\n",
			"        NULL;\n",
		}},
		Package: leaseTests, Run: "^TestFence$",
	},
	{
		Name: "results-unfenced", Invariant: "I10", Removed: "results are written behind fence()",
		Edits:   []Edit{{settleSQL, "paused boolean := reconciler.fence(settle.target_id, settle.owner, settle.term);", "paused boolean := false;"}},
		Package: serverTests, Run: "^TestDeposedOwnerWritesNothing$",
	},
	{
		Name: "approval-undone", Invariant: "C36", Removed: "an approval outlasts what was read before it",
		Edits:   []Edit{{settleSQL, "ELSE result.held_by IS NOT NULL AND NOT result.approved END", "ELSE false END"}},
		Package: applyTests, Run: "^TestApprovalOutlivesWhatWasReadBefore$",
	},
	{
		Name: "living-lease-taken", Invariant: "I10", Removed: "a lease that lives is not taken",
		Edits:   []Edit{{leaseSQL, "WHERE t.owner IS NULL OR t.owner = $7::uuid OR reconciler.unrenewed(", "WHERE true OR reconciler.unrenewed("}},
		Package: leaseTests, Run: "^TestFence$",
	},
	{
		Name: "lease-allows-every-call", Invariant: "I10", Removed: "a lease allows only calls that end within it",
		Edits:   []Edit{{grantFile, "return left > 0 && left >= d", "return left > 0 || left <= d"}},
		Package: leaseTests, Run: "^TestGrant$",
	},
	{
		Name: "lease-not-asked", Invariant: "I10", Removed: "a call waits until the lease outlives it",
		Edits:   []Edit{{workFile, "if o.cfg.Grant.Allows(o.cfg.Timeout) && ctx.Err() == nil {", "if ctx.Err() == nil {"}},
		Package: applyTests, Run: "^TestNoCallBeginsThatMayOutliveTheLease$",
	},
	{
		Name: "deposed-leader-ticks", Invariant: "I10", Removed: "a deposed leader makes no revision",
		Edits:   []Edit{{tickSQL, "WHERE l.name = 'tick' AND l.owner = $2::uuid AND l.term = $3::bigint)\n", "WHERE l.name = 'tick' OR l.owner = $2::uuid AND l.term = $3::bigint)\n"}},
		Package: outboxTests, Run: "^(TestDeposedLeaderMakesNoRevision|TestCursorOfADeposedLeader)$",
	},
	{
		Name: "crash-is-clean", Invariant: "I10", Removed: "a target that was taken over from a dead owner is not clean",
		Edits:   []Edit{{leaseSQL, "clean = t.clean AND t.owner IS NULL,", "clean = t.clean,"}},
		Package: leaseTests, Run: "^TestTakeover$",
	},
}

// I11: live changes come first, and a sync has its share.
var lanes = []Mutant{
	{
		Name: "sync-fills-window", Invariant: "I11", Removed: "a part of the window is kept for live changes",
		Edits:   []Edit{{queueFile, "sync = min(free-live, max(0, q.window-kept-q.inFlight[LaneSync]))", "sync = free - live"}},
		Package: applyTests, Run: "^TestLanesHaveTheirShares$",
	},
	{
		Name: "sync-uses-every-worker", Invariant: "I11", Removed: "some workers are kept for live changes",
		Edits:   []Edit{{ownerFile, "make(chan struct{}, max(1, cfg.Concurrency-max(1, cfg.Concurrency/4)))", "make(chan struct{}, cfg.Concurrency)"}},
		Package: applyTests, Run: "^TestSlowSyncLeavesWorkersToLiveChanges$",
	},
	{
		Name: "live-fills-window", Invariant: "I11", Removed: "a part of the window is kept for a sync",
		Edits:   []Edit{{queueFile, "live = min(live, max(0, q.window-kept-q.inFlight[LaneLive]))", "live = min(live, free)"}},
		Package: applyTests, Run: "^TestLanesHaveTheirShares$",
	},
	{
		Name: "live-always-first", Invariant: "I11", Removed: "each fourth call is a sync's, if it has one",
		Edits:   []Edit{{workFile, "if n%4 == 3 && o.trySync(ctx, &sync) || n%4 != 3 && o.tryLive(ctx, &live) {", "if o.tryLive(ctx, &live) {"}},
		Package: applyTests, Run: "^TestFastLiveChangesLeaveASyncItsShare$",
	},
}

// C20: what is large is read by its index, whatever the planner knows.
var plans = []Mutant{
	{
		Name: "read-unbounded", Invariant: "C20", Removed: "a read returns as many bytes of specs as it may",
		Edits:   []Edit{{desiredRead, "if bytes += len(row.Spec); bytes > ReadMost {", "if bytes += len(row.Spec); bytes < 0 {"}},
		Package: desiredTests, Run: "^TestF17_ReadReturnsAsManySpecsAsItMay$",
	},
	{
		Name: "flight-unbounded", Invariant: "C20", Removed: "nothing more is taken while specs in flight have many bytes",
		Edits:   []Edit{{queueFile, "if free <= 0 || q.bytes >= flightBytes {", "if free <= 0 {"}},
		Package: applyTests, Run: "^TestF17_SpecsInFlightAreBoundedInBytes$",
	},
	{
		Name: "batch-unbounded", Invariant: "C20", Removed: "one call to a driver that takes many objects has no more than some bytes",
		Edits:   []Edit{{"internal/apply/dispatch.go", "len(batch) == size || bytes >= batchBytes {", "len(batch) == size {"}},
		Package: applyTests, Run: "^TestF17_BatchesOfADriverAreBoundedInBytes$",
	},
	{
		Name: "giant-read-from-its-start", Invariant: "C20", Removed: "a page of a giant transaction starts where the last one ended, by one bound that the index can take",
		Edits:   []Edit{{tickSQL, "(i.xid, i.seq) > (g.xid, g.seq) AND i.xid < g.below", "(i.xid > g.xid OR i.xid = g.xid AND i.seq > g.seq) AND i.xid < g.below"}},
		Package: outboxTests, Run: "^TestEveryPageOfAGiantTransactionCostsTheSame$",
	},
	{
		Name: "plans-kept", Invariant: "C20", Removed: "a query of many keys is planned for itself, not when the table was small",
		Edits:   []Edit{{desiredRead, "	if n < manyKeys {\n", "	if n < 1000*manyKeys {\n"}},
		Package: desiredTests, Run: "^TestPlansOfSmallTablesAreNotKept$",
	},
	{
		Name: "tick-plan-of-an-empty-outbox", Invariant: "C20", Removed: "ticks walk the outbox's index, even when it was empty as they were planned",
		Edits:   []Edit{{tickerFile, "Settings: database.WalkSession(), Fleet: t.Fleet}", "Settings: database.Session(), Fleet: t.Fleet}"}},
		Package: outboxTests, Run: "^TestPlansForAnEmptyOutboxServeAFullOne$",
	},
	{
		Name: "delta-plan-of-an-empty-outbox", Invariant: "C20", Removed: "so do the pages that owners read",
		Edits:   []Edit{{feedFile, "store.New(database.Walk(f.db)).OutboxDelta", "store.New(f.db).OutboxDelta"}},
		Package: outboxTests, Run: "^TestPlansForAnEmptyOutboxServeAFullOne$",
	},
	{
		Name: "gate-plan-of-quiet-times", Invariant: "C20", Removed: "what a gate held is found by its key, also when next to nothing was held as that was planned",
		Edits: []Edit{{
			appliesSQL, "l.state::text = 'held' AND l.held_by = 'gate' OR fresh AND l.state::text IN", "l.state = 'held' AND l.held_by = 'gate' OR fresh AND l.state IN",
		}},
		Package: applyTests, Run: "^TestApplyOfManyAfterQuietTimes$",
	},
	{
		Name: "wait-plan-of-empty-tables", Invariant: "C20", Removed: "so do the statements by which wait() looks again and again",
		Edits: []Edit{{
			waitSQL, "LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$",
			"LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$",
		}},
		Package: applyTests, Run: "^TestWaitsPlansForEmptyTablesServeFullOnes$",
	},
	{
		Name: "brought-again-read", Invariant: "C20", Removed: "what many pages of a batch bring is looked at once",
		Edits:   []Edit{{readerFile, "if !long || !o.brought.again(id) {", "if !long || true {"}},
		Package: serverTests, Run: "^TestWhatABatchBringsAgainIsLookedAtOnce$",
	},
	{
		Name: "due-all-read", Invariant: "C20", Removed: "which object is due next is asked with a time that an index can be searched for",
		Edits:   []Edit{{ledgerSQL, "next_attempt_at > statement_timestamp()\nORDER BY", "next_attempt_at > clock_timestamp()\nORDER BY"}},
		Package: applyTests, Run: "^TestDueObjectsAreFoundWithTheNextOne$",
	},
}

// I12: a restore is noticed.
var restores = []Mutant{
	{
		Name: "restore-unnoticed", Invariant: "I12", Removed: "adopt() finds a restored database",
		Edits: []Edit{{
			cursorSQL, "(here.system, here.timeline, here.database, here.table_oid) AND NOT lost THEN",
			"(here.system, here.timeline, here.database, here.table_oid) OR state.system_identifier IS NOT NULL THEN",
		}},
		Package: serverTests, Run: "^TestRestoredDatabaseIsNoticed$",
	},
	{
		Name: "lost-revisions-unnoticed", Invariant: "I12", Removed: "a process that has seen revisions which the database has no more takes it for restored",
		Edits:   []Edit{{cursorSQL, "lost := known > coalesce((SELECT max(revision) FROM reconciler.ticks), 0);", "lost := false;"}},
		Package: faultTests, Run: "^TestRareFilesThatArePutBackAreAppliedAnew$",
	},
	{
		Name: "old-primary-forgotten", Invariant: "I12", Removed: "what was done by the rows of an old primary is repaired on the new one",
		Edits:   []Edit{{"internal/lease/beat.go", "	s.move(live)\n", ""}},
		Package: serverTests, Run: "^TestF88_WhatAnOldPrimaryChangedIsRepaired$",
	},
	{
		Name: "terms-from-one", Invariant: "I12", Removed: "a target that begins anew begins with the time of day",
		Edits:   []Edit{{cursorSQL, "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint)\n", "0)\n"}},
		Package: leaseTests, Run: "^TestTermsGrowThoughTheirRowsAreMadeAnew$",
	},
	{
		Name: "restore-keeps-cursors", Invariant: "I12", Removed: "after a restore cursors are dropped and a sync is asked for",
		Edits: []Edit{
			{
				cursorSQL, "term = reconciler.fresh_term(term), clean = false;\n    DELETE FROM reconciler.cursors;",
				"term = reconciler.fresh_term(term), clean = true;",
			},
			{cursorSQL, "start_over.reason, true FROM reconciler.targets WHERE configured\n", "start_over.reason, true FROM reconciler.targets WHERE false\n"},
		},
		Package: serverTests, Run: "^TestRestoredDatabaseIsNoticed$",
	},
}
