package main

// Applies: one target after the other, and an end that is one.
var applies = []Mutant{
	{
		Name: "gate-ignored", Invariant: "applies", Removed: "an object of an apply keeps what it has until its target's turn comes",
		Edits:   []Edit{{decideFile, "return l.row.Task != nil && !l.row.Task.Open }", "return false && l.row.Task != nil }"}},
		Package: serverTests, Run: "^TestApplyRollsOverTheTargets$",
	},
	{
		Name: "claim-does-not-wait", Invariant: "applies", Removed: "a target waits for those before it",
		Edits:   []Edit{{appliesSQL, "ELSIF a.strategy <> 'parallel' AND f.ordinal < o.ordinal THEN", "ELSIF false AND f.ordinal < o.ordinal THEN"}},
		Package: applyTests, Run: "^TestApplyRolls$",
	},
	{
		Name: "finishers-unlocked", Invariant: "applies", Removed: "operations that end at once take turns on the apply's row",
		Edits: []Edit{
			{appliesSQL, "WHERE x.id = refresh_apply.apply_id FOR NO KEY UPDATE;", "WHERE x.id = refresh_apply.apply_id;"},
			{
				appliesSQL,
				"WHERE o.id = ANY (settle_tasks.operation_ids) ORDER BY 1);\n    PERFORM FROM reconciler.applies a WHERE a.id = ANY (apply_ids) ORDER BY a.id FOR NO KEY UPDATE;\n",
				"WHERE o.id = ANY (settle_tasks.operation_ids) ORDER BY 1);\n",
			},
		},
		Package: applyTests, Run: "^(TestApplyTwoFinishersAtOnce|TestApplyFinishersInACrowd)$",
	},
	{
		Name: "stop-leaves-gates-open", Invariant: "applies", Removed: "a stop closes the gates of what runs",
		Edits:   []Edit{{appliesSQL, "SET wish = 'stop' WHERE x.id = a.id;\n    PERFORM reconciler.close_gates(a.id);\n", "SET wish = 'stop' WHERE x.id = a.id;\n"}},
		Package: applyTests, Run: "^TestApplyStopAfterClaim$",
	},
	{
		Name: "attempts-unbounded", Invariant: "applies", Removed: "an object has failed when its attempts are used up",
		Edits: []Edit{{appliesSQL, "WHEN n.verdict = 'failed' OR k.attempts + 1 >= n.budget THEN 'failed' ELSE 'pending' END,\n            governs = n.verdict = 'attempt' AND k.attempts + 1 < n.budget,\n            settled_at = CASE WHEN n.verdict <> 'attempt' OR k.attempts + 1 >= n.budget THEN",
			"WHEN n.verdict = 'failed' THEN 'failed' ELSE 'pending' END,\n            governs = n.verdict = 'attempt',\n            settled_at = CASE WHEN n.verdict <> 'attempt' THEN"}},
		Package: applyTests, Run: "^TestApplySpendsAttempts$",
	},
	{
		Name: "end-unsaid", Invariant: "applies", Removed: "the outbox tells of each end",
		Edits: []Edit{{
			appliesSQL, "        INSERT INTO reconciler.outbox (resource_id, dependency_id, image) VALUES (0, 0, jsonb_build_object('apply', a.id, 'event', event, 'state', tell_state.state));\n", "",
		}},
		Package: applyTests, Run: "^TestApplyTwoFinishersAtOnce$",
	},
	{
		Name: "unopened-read", Invariant: "applies", Removed: "an object waits for the apply that has changed it to be open",
		Edits:   []Edit{{gatesFile, `AS ids OFFSET 0) AS u)::text[]), true)"`, `AS ids OFFSET 0) AS u)::text[]) AND false, true)"`}},
		Package: serverTests, Run: "^TestApplyThatIsNotOpenHoldsWhatItChanged$",
	},
	{
		Name: "looks-forget-who-was-open", Invariant: "applies", Removed: "a look at gates goes back to the oldest transaction that was open at the one before",
		Edits:   []Edit{{ledgerSQL, "pg_snapshot_xmin(pg_current_snapshot())::xid8 AS since", "pg_snapshot_xmax(pg_current_snapshot())::xid8 AS since"}},
		Package: applyTests, Run: "^TestF94_KnowingGatesFromBeforeHidesNone$",
	},
	{
		Name: "retry-behind-looks", Invariant: "applies", Removed: "an operation that begins again counts as new",
		Edits:   []Edit{{appliesSQL, "term = NULL, done = false, xid = pg_current_xact_id(), completed_at", "term = NULL, done = false, completed_at"}},
		Package: applyTests, Run: "^TestF94_KnowingGatesFromBeforeHidesNone$",
	},
	{
		Name: "looks-begin-anew", Invariant: "I2", Removed: "a look at gates begins where the one before it ended",
		Edits:   []Edit{{gatesFile, "return Gates{Since: since, Unopened: unopened, Operations: operations}", "return Gates{}"}},
		Package: outboxTests, Run: "^TestF94_ChangesCostTheSameHoweverOldASnapshotIs$",
	},
	{
		Name: "stop-confirmed-at-once", Invariant: "applies", Removed: "an operation has stopped when the calls that were on their way have ended",
		Edits:   []Edit{{turnFile, "if o.queue.flyingFor(id) == 0 {", "if o.queue.flyingFor(id) >= 0 {"}},
		Package: serverTests, Run: "^TestApplyStopsAndStarts$",
	},
	{
		Name: "former-owners-forgotten", Invariant: "applies", Removed: "an owner takes over what a former one had begun",
		Edits:   []Edit{{appliesSQL, "ELSIF o.is_open AND o.term IS DISTINCT FROM claim_operations.term THEN", "ELSIF false THEN"}},
		Package: applyTests, Run: "^TestApplyTakeover$",
	},
	{
		Name: "waiting-holds-apply", Invariant: "applies", Removed: "owners that only wait for others leave the apply to those whose turn it is",
		Edits:   []Edit{{appliesSQL, "p.ordinal < x.ordinal AND p.state NOT IN", "false AND p.state NOT IN"}},
		Package: applyTests, Run: "^TestWaitingForOthersHoldsNobody$",
	},
	{
		Name: "turns-unheard", Invariant: "applies", Removed: "owners are told when their turn has come",
		Edits:   []Edit{{serverFile, "	group.Go(func() error { return s.watchTurns(running) })\n", ""}},
		Package: serverTests, Run: "^TestApplyTurnsAreHeardOf$",
	},
}
