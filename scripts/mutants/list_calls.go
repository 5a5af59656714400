package main

// I3: no call has an older spec than one before, and no object has two calls at once.
var staleness = []Mutant{
	{
		Name: "first-spec-again", Invariant: "I3", Removed: "the spec is read when the object is called: that of its first call is used again",
		Edits: []Edit{
			{ownerFile, "// Load reads what", "var firstSpecs sync.Map\n\n// Load reads what"},
			{
				workFile, "\treturn driver.Object{Ref: ref, Spec: l.row.Spec, Hash: l.row.Hash}\n",
				"\tfirst, _ := firstSpecs.LoadOrStore(o.cfg.Instance+ref.Target+ref.Resource+ref.Key, l.row.Spec)\n\treturn driver.Object{Ref: ref, Spec: first.([]byte), Hash: l.row.Hash}\n",
			},
		},
		Package: serverTests, Run: "^TestChangesReachTheirTarget$",
	},
	{
		Name: "doubled-enqueue", Invariant: "I3", Removed: "an object in flight is not handed out again",
		Edits:   []Edit{{queueFile, "if f, ok := q.flying[it.ObjectID]; ok {", "if f, ok := q.flying[it.ObjectID]; ok && false {"}},
		Package: applyTests, Run: "^(TestObjectInFlightIsNotTakenAgain|TestEveryItemOfARunEndsOnce)$",
	},
	{
		Name: "change-during-call-lost", Invariant: "I3", Removed: "a change during a call leads to another one",
		Edits:   []Edit{{queueFile, "\tif next != nil {\n\t\tq.appendLocked(next)\n\t}\n", "\t_ = next\n"}},
		Package: applyTests, Run: "^(TestObjectInFlightIsNotTakenAgain|TestEveryItemOfARunEndsOnce)$",
	},
	{
		Name: "old-rows-called", Invariant: "I3", Removed: "a row that was read long ago is read again before its call",
		Edits:   []Edit{{workFile, " || time.Since(l.readAt) > staleAfter || ", " || "}},
		Package: applyTests, Run: "^TestOldRowIsReadAgainBeforeItsCall$",
	},
}

// I4: one bad object hurts itself only.
var isolation = []Mutant{
	{
		Name: "failing-holds-cursor", Invariant: "I4", Removed: "objects that fail do not hold the cursor (nor do slow ones, which would cover it)",
		Edits: []Edit{
			{
				settlerFile, "\t\to.tracker.settle(r.item.ObjectID, r.item.pages)\n",
				"\t\tif r.record == nil || r.record.state != \"failing\" {\n\t\t\to.tracker.settle(r.item.ObjectID, r.item.pages)\n\t\t}\n",
			},
			{settlerFile, "\tif s.o.breaker.isOpen() {\n\t\treturn nil\n\t}\n\tlate,", "\tif true {\n\t\treturn nil\n\t}\n\tlate,"},
		},
		Package: serverTests, Run: "^TestBadObjectsHurtThemselvesOnly$",
	},
	{
		Name: "slow-holds-cursor", Invariant: "I4", Removed: "slow objects do not hold the cursor for long",
		Edits:   []Edit{{settlerFile, "\tif s.o.breaker.isOpen() {\n\t\treturn nil\n\t}\n\tlate,", "\tif true {\n\t\treturn nil\n\t}\n\tlate,"}},
		Package: applyTests, Run: "^TestSlowObjectIsRecordedUnderConstantLoad$",
	},
	{
		Name: "unreadable-row-fails-page", Invariant: "I4", Removed: "the rows of a page are read by halves when one of them cannot be",
		Edits:   []Edit{{desiredRead, "\tif err == nil || !isDataError(err) {\n\t\treturn rows, err\n", "\tif true {\n\t\treturn rows, err\n"}},
		Package: serverTests, Run: "^TestBadObjectsHurtThemselvesOnly$",
	},
	{
		Name: "unreadable-row-spoils-its-table", Invariant: "I4", Removed: "a row that is looked at alone has no other evaluated",
		Edits:   []Edit{{desiredRead, "	if alone {\n", "	if false {\n"}},
		Package: desiredTests, Run: "^TestPagesOverRowsThatCannotBeEvaluated$",
	},
}

// I5: a delete needs proof.
var proof = []Mutant{
	{
		Name: "cut-listing-complete", Invariant: "I5", Removed: "a listing that breaks off ends the sync",
		Edits:   []Edit{{scanFile, "\t\t\treturn &ListError{Target: s.Target, Resource: r.Name, Text: err.Error()}\n", "\t\t\tbreak\n"}},
		Package: serverTests, Run: "^TestFailedSyncDeletesNothing$",
	},
	{
		Name: "cut-sync-complete", Invariant: "I5", Removed: "a sync that failed half-way is not complete: its deletes are carried out",
		Edits: []Edit{{
			runnerFile, "\tprogress, err := scan.Run(ctx, resources)\n\tif err != nil {\n",
			"\tprogress, err := scan.Run(ctx, resources)\n\tif err != nil && ctx.Err() != nil {\n",
		}},
		Package: serverTests, Run: "^(TestFailedSyncDeletesNothing|TestSyncWhoseQueryFailsInTheMiddle)$",
	},
	{
		Name: "unreadable-is-unwanted", Invariant: "I5", Removed: "a row that cannot be read is no reason to delete",
		Edits:   []Edit{{decideFile, "if l.row.Err != nil && !l.drain {\n\t\treturn decideSpoiled", "if false {\n\t\treturn decideSpoiled"}},
		Package: applyTests, Run: "^TestDecisionsAboutSpoiledRows$",
	},
	{
		Name: "waiting-is-present", Invariant: "I5", Removed: "an object that waits for its first call is not in the target: when its row goes there is nothing to delete",
		Edits:   []Edit{{settleSQL, "'pending', true, n.called, clock_timestamp() + record_in_hand.patience", "'pending', true, true, clock_timestamp() + record_in_hand.patience"}},
		Package: serverTests, Run: "^TestWhatWasNeverCalledIsNotDeleted$",
	},
	{
		Name: "late-stays-in-hand", Invariant: "I4", Removed: "an object with nothing to record, recorded as in hand meanwhile, is looked at again at once",
		Edits:   []Edit{{settlerFile, " || r.record == nil && s.late[r.item.ObjectID]", ""}},
		Package: applyTests, Run: "^TestObjectInHandWithNothingToRecordIsLookedAtAgain$",
	},
}

// I6: no mass delete by accident.
var massDeletes = []Mutant{
	{
		Name: "guard-lets-each-pass", Invariant: "I6", Removed: "the guard counts single deletes",
		Edits:   []Edit{{guardFile, "if g.remainingLocked() < 1 {", "if false {"}},
		Package: applyTests, Run: "^(TestGuardLetsPassWhatItsLimitsSay|TestGuardHoldsInEveryWindow)$",
	},
	{
		Name: "guard-lets-lots-pass", Invariant: "I6", Removed: "the guard decides on parked deletes",
		Edits:   []Edit{{guardFile, "if n > g.remainingLocked() {", "if false {"}},
		Package: applyTests, Run: "^TestGuardDecidesOnManyAtOnce$",
	},
	{
		Name: "guard-window-forgotten", Invariant: "I6", Removed: "deletes that a former owner's guard let pass count",
		Edits:   []Edit{{ownerFile, "for _, row := range rows {\n\t\to.guard.remember(", "for _, row := range rows[:0] {\n\t\to.guard.remember("}},
		Package: serverTests, Run: "^TestF11_GuardCountsOnAfterARestart$",
	},
	{
		Name: "page-uncounted", Invariant: "I6", Removed: "the deletes of a page are counted before the first",
		Edits:   []Edit{{readerFile, "if err := o.countDeletes(ctx, found.items, more, &o.batch); err != nil {", "if err := error(nil); err != nil {"}},
		Package: serverTests, Run: "^TestGuardHoldsMassDeletes$",
	},
	{
		Name: "sync-parks-nothing", Invariant: "I6", Removed: "a sync parks its deletes until all are counted",
		Edits:   []Edit{{runnerFile, "park := f.Kind == KindTombstone || f.Kind == KindOrphan", "park := false"}},
		Package: serverTests, Run: "^TestGuardHoldsMassDeletes$",
	},
}

// I7: nothing is forgotten.
var memory = []Mutant{
	{
		Name: "failed-delete-forgotten", Invariant: "I7", Removed: "a failed delete keeps the ledger row",
		Edits:   []Edit{{decideFile, "if out.Verdict == driver.VerdictDone {\n\t\tif act == actDelete {", "if out.Verdict == driver.VerdictDone || act == actDelete {\n\t\tif act == actDelete {"}},
		Package: applyTests, Run: "^TestOutcomeOfADelete$",
	},
	{
		Name: "no-tombstone-pass", Invariant: "I7", Removed: "a sync looks for objects that no row wants",
		Edits:   []Edit{{scanFile, "\t\tif err := s.ledger(ctx, r, listed); err != nil {", "\t\t_ = listed\n\t\tif err := error(nil); err != nil {"}},
		Package: serverTests, Run: "^TestSyncFindsWhatTriggersMissed$",
	},
	{
		Name: "parked-forgotten", Invariant: "I7", Removed: "an owner decides on what a former one has parked",
		Edits:   []Edit{{ownerFile, "\treturn o.decideParked(ctx, heldByBatch)\n", "\treturn nil\n"}},
		Package: faultTests, Run: "^TestDeletesThatADeadProcessParkedAreDecidedOn$",
	},
}
