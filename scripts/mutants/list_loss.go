package main

// I1: no change is lost.
var loss = []Mutant{
	{
		Name: "cursor-before-ledger", Invariant: "I1", Removed: "the cursor waits for the ledger: objects count as recorded when they are handed out",
		Edits:   []Edit{{readerFile, "\t\to.tracker.add(page, it.ObjectID)\n", ""}},
		Package: serverTests, Run: "^TestCursorPassesNothingThatTheLedgerDoesNotKnow$",
	},
	{
		Name: "cursor-ignores-objects", Invariant: "I1", Removed: "the cursor stops before a page with objects that are not recorded",
		Edits:   []Edit{{trackerFile, "t.pages[n].handed && len(t.pages[n].objects) == 0 {", "t.pages[n].handed {"}},
		Package: applyTests, Run: "^(TestCursorMovesOverSettledPagesOnly|TestCursorIsTheLongestSettledPrefix)$",
	},
	{
		Name: "max-id-cursor", Invariant: "I1", Removed: "the snapshot in the cursor: what was in progress at the last tick is not read any more, as if the highest id seen were the cursor",
		Edits: []Edit{
			{tickSQL, "x WHERE pg_visible_in_snapshot(x.xip, pg_current_snapshot())", "x WHERE false AND pg_visible_in_snapshot(x.xip, pg_current_snapshot())"},
			{tickSQL, "AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x", "AND false AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x"},
		},
		Package: serverTests, Run: "^TestOpenTransactionDelaysItsOwnChangesOnly$",
	},
	{
		Name: "max-id-tick", Invariant: "I1", Removed: "the same where a tick is made only",
		Edits:   []Edit{{tickSQL, "x WHERE pg_visible_in_snapshot(x.xip, pg_current_snapshot())", "x WHERE false AND pg_visible_in_snapshot(x.xip, pg_current_snapshot())"}},
		Package: outboxTests, Run: "^(TestCursorOverCommitsOutOfOrder|TestEveryCommittedRowArrivesOnce)$",
	},
	{
		Name: "max-id-batch", Invariant: "I1", Removed: "the same where a batch over several ticks is read only",
		Edits:   []Edit{{tickSQL, "AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x", "AND false AND pg_visible_in_snapshot(xip, $3::text::pg_snapshot)) AS x"}},
		Package: outboxTests, Run: "^(TestCursorReadsOnFromAnyTick|TestCursorMissesNothingUnderStress)$",
	},
	{
		Name: "doze-ends-early", Invariant: "I1", Removed: "the doze lasts until every transaction has ended that may have seen the sleep lock free",
		Edits:   []Edit{{tickerFile, "\tif inProgress {\n\t\treturn nil\n\t}\n", "\t_ = inProgress\n"}},
		Package: outboxTests, Run: "^TestTransactionOlderThanTheSleepIsFoundByTheDoze$",
	},
	{
		Name: "no-doze", Invariant: "I1", Removed: "the doze: the leader goes from awake to asleep at once",
		Edits:   []Edit{{tickerFile, "l.mode, l.dozingAt = modeDozing, now", "l.mode, l.dozingAt = modeAsleep, now"}},
		Package: outboxTests, Run: "^(TestTransactionOlderThanTheSleepIsFoundByTheDoze|TestLeaderSleepsWhenNothingHappens)$",
	},
	{
		Name: "no-wake", Invariant: "I1", Removed: "writers wake a leader that sleeps",
		Edits:   []Edit{{captureSQL, "        PERFORM pg_catalog.pg_notify('reconciler_wake', '');\n", "        NULL;\n"}},
		Package: outboxTests, Run: "^TestCaptureNotifiesASleepingLeader$",
	},
	{
		Name: "steward-does-not-wake", Invariant: "I1", Removed: "the leader is woken for rows that it wrote itself",
		Edits:   []Edit{{stewardFile, "\t\ts.Wake()\n", ""}},
		Package: serverTests, Run: "^TestChangeOfABaseTableDoesNotWaitForThePoll$",
	},
	{
		Name: "first-cursor-trusted", Invariant: "I1", Removed: "changes of base tables that the first leader left unexpanded are made up for",
		Edits:   []Edit{{stewardFile, "\tif unexpanded {\n", "\tif unexpanded && false {\n"}},
		Package: outboxTests, Run: "^TestFirstLeaderDiesBeforeItsCursorIsKept$",
	},
	{
		Name: "vanished-not-looked-for", Invariant: "I1", Removed: "recorded objects of joined resources are looked at again when their row has vanished",
		Edits:   []Edit{{settlerFile, "vanished, err := s.o.vanished(ctx, batch)", "vanished, err := map[ObjectID]bool{}, error(nil)"}},
		Package: serverTests, Run: "^TestJoinedRowThatVanishesDuringItsFirstCall$",
	},
	{
		Name: "takeover-forces-nothing", Invariant: "I1", Removed: "after a crash the former owner's last events force calls and deletes",
		Edits:   []Edit{{readerFile, "{ return cur.base.Revision < o.replay }", "{ return cur.base.Revision < o.replay && false }"}},
		Package: serverTests, Run: "^TestUncleanTargetGetsDeletesOfWhatTheLedgerDoesNotKnow$",
	},
	{
		Name: "takeover-is-clean", Invariant: "C74", Removed: "an owner knows that the ledger may lack results after a crash",
		Edits: []Edit{
			{ownerFile, "\to.clean.Store(row.Clean)\n\tif !row.Clean {", "\to.clean.Store(true)\n\tif !row.Clean && false {"},
			{ownerFile, "\to.clean.Store(row.Clean)\n\to.cfg.Metrics", "\to.clean.Store(true)\n\to.cfg.Metrics"},
		},
		Package: serverTests, Run: "^TestUncleanTargetGetsDeletesOfWhatTheLedgerDoesNotKnow$",
	},
	{
		Name: "unknown-is-absent", Invariant: "C74", Removed: "what the ledger does not know is deleted all the same when a change is read again after a crash",
		Edits:   []Edit{{decideFile, "case e == nil && !l.item.Force, ", "case e == nil, "}},
		Package: applyTests, Run: "^TestDecisionsAboutUnwantedObjects$",
	},
	{
		Name: "first-calls-unrecorded", Invariant: "I7", Removed: "an object is on record before its first call",
		Edits:   []Edit{{lookFile, "if now.paused || now.drain {", "if true {"}},
		Package: serverTests, Run: "^(TestF1_CallsUnderWayAreKnownToWhateverDeletes|TestF7_FirstCallOfADeadOwnerOutlivesStartOver|TestTruncatedRowsOfADeadSyncLeaveNoOrphan)$",
	},
	{
		Name: "first-calls-not-taken-in", Invariant: "I7", Removed: "a scan has what is called for in the ledger",
		Edits:   []Edit{{runnerFile, "if err := r.cfg.Owner.KnowCalls(ctx); err != nil {", "if err := error(nil); err != nil {"}},
		Package: serverTests, Run: "^TestF1_CallsUnderWayAreKnownToWhateverDeletes$",
	},
	{
		Name: "first-calls-of-the-dead", Invariant: "I7", Removed: "an owner has in the ledger what those of before called for",
		Edits:   []Edit{{ownerFile, "if err := o.queries.FirstCallsTakeIn(ctx, store.FirstCallsTakeInParams{TargetID: o.cfg.Grant.ID, EndedTerm: o.cfg.Grant.Term}); err != nil {", "if err := error(nil); err != nil {"}},
		Package: serverTests, Run: "^TestF7_FirstCallOfADeadOwnerOutlivesStartOver$",
	},
	{
		Name: "first-calls-lost-in-hand", Invariant: "I7", Removed: "what is recorded as in hand while its first call is under way is present",
		Edits:   []Edit{{settlerFile, "params.Called = append(params.Called, o.firsts.has(id))", "params.Called = append(params.Called, false)"}},
		Package: applyTests, Run: "^TestWhatIsInHandIsPresentOnceItIsOnRecord$",
	},
	{
		Name: "recorded-is-present", Invariant: "I5", Removed: "what was never called for is not deleted",
		Edits:   []Edit{{firstFile, "if e.Present = called; called {", "if e.Present = true; called {"}},
		Package: applyTests, Run: "^TestWhatIsRecordedForItsFirstCallIsThereWhenThatBegins$",
	},
	{
		Name: "called-is-absent", Invariant: "I7", Removed: "what was called for, and has no result, is in the target",
		Edits:   []Edit{{firstFile, "if e.Present = called; called {", "if e.Present = false; called {"}},
		Package: applyTests, Run: "^TestWhatIsRecordedForItsFirstCallIsThereWhenThatBegins$",
	},
	{
		Name: "first-calls-unflushed", Invariant: "I7", Removed: "the row of a first call that no event tells of outlives a crash of the server",
		Edits:   []Edit{{settleSQL, "CASE WHEN record_first_calls.flush THEN 'on' ELSE 'off' END", "'off'"}},
		Package: desiredTests, Run: "^TestFirstCallsThatNoEventTellsOfAreFlushed$",
	},
	{
		Name: "first-calls-unfenced", Invariant: "I10", Removed: "a deposed owner's read for calls is refused",
		Edits:   []Edit{{settleSQL, " AND t.owner = record_first_calls.owner AND t.term = record_first_calls.term\n", "\n"}},
		Package: desiredTests, Run: "^TestReadToCallRecordsWhatTheLedgerDoesNotKnow$",
	},
	{
		Name: "outlive-not-waited", Invariant: "I1", Removed: "the sync after a crash waits until the last call of the dead owner must have ended",
		Edits:   []Edit{{runnerFile, "case <-time.After(time.Until(r.local.Add(r.cfg.Timeout))):", "case <-time.After(0):"}},
		Package: faultTests, Run: "^TestLateCallOfADeadOwnerIsMadeGood$",
	},
	{
		Name: "retention-without-interest", Invariant: "I1", Removed: "the outbox keeps what some consumer has not read",
		Edits:   []Edit{{cursorSQL, "IF NOT EXISTS (SELECT FROM reconciler.interest() AS s WHERE reconciler.unread(part, s)) AND", "IF true AND"}},
		Package: outboxTests, Run: "^(TestRowsWithoutARevisionStay|TestConsumerBeyondMaxAgeIsCutOff|TestPartsOfTheOutboxTakeTurns)$",
	},
	{
		Name: "retention-without-applies", Invariant: "I1", Removed: "the outbox keeps what an apply is still to be opened from",
		Edits:   []Edit{{cursorSQL, "AND NOT reconciler.unopened_in(part) THEN", "THEN"}},
		Package: outboxTests, Run: "^TestRetentionKeepsWhatAppliesAreToBeOpenedFrom$",
	},
	{
		Name: "floor-stays", Invariant: "I1", Removed: "the floor rises when unread rows are dropped",
		Edits: []Edit{{
			cursorSQL, "            UPDATE reconciler.installation SET floor_revision = greatest(floor_revision, reconciler.exact_from(part));\n            EXECUTE format('TRUNCATE %s', part);\n            RETURN format('emptied %s: the outbox was",
			"            EXECUTE format('TRUNCATE %s', part);\n            RETURN format('emptied %s: the outbox was",
		}},
		Package: outboxTests, Run: "^TestConsumerBeyondMaxRowsIsCutOff$",
	},
	{
		Name: "floor-is-the-end", Invariant: "C24", Removed: "a cursor that is raised to the floor still reads the changes that are left there",
		Edits:   []Edit{{readerFile, " || latest.Revision == c.base.Revision && latest.Snapshot != c.base.Snapshot", ""}},
		Package: serverTests, Run: "^TestChangesThatAreLeftAreReadBelowTheFloor$",
	},
	{
		Name: "reload-not-owed", Invariant: "I1", Removed: "a file target notes that a reload is owed before it changes a file",
		Edits:   []Edit{{reloadFile, "r.noted = leaveWord(r.owedPath) == nil\n", "r.noted = leaveWord(r.owedPath) == nil && os.Remove(r.owedPath) == nil\n"}},
		Package: faultTests, Run: "^TestReloadThatADeadProcessOwesIsMadeGood$",
	},
}

// I2: an open transaction delays its own changes only.
var stall = []Mutant{
	{
		Name: "ticks-wait-for-transactions", Invariant: "I2", Removed: "ticks are made while transactions are open",
		Edits: []Edit{{
			tickSQL, "AND l.owner = $2::uuid AND l.term = $3::bigint)\n",
			"AND l.owner = $2::uuid AND l.term = $3::bigint)\n      AND pg_snapshot_xmin(pg_current_snapshot()) = pg_snapshot_xmax(pg_current_snapshot())\n",
		}},
		Package: serverTests, Run: "^TestOpenTransactionDelaysItsOwnChangesOnly$",
	},
}
