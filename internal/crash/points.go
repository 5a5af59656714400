package crash

// Name names a point. All lists them.
type Name string

// The points. All says where each of them is.
const (
	LeaderTaken      Name = "leader-taken"
	AfterTick        Name = "after-tick"
	CursorStarted    Name = "cursor-started"
	BeforeHandOut    Name = "before-hand-out"
	HandingOut       Name = "handing-out"
	BeforeCall       Name = "before-call"
	AfterCall        Name = "after-call"
	BeforeSettle     Name = "before-settle"
	AfterSettle      Name = "after-settle"
	LateRecorded     Name = "late-recorded"
	DeletesParked    Name = "deletes-parked"
	DeletesDecided   Name = "deletes-decided"
	SyncPage         Name = "sync-page"
	SyncRowsDone     Name = "sync-rows-done"
	SyncUnfinished   Name = "sync-unfinished"
	BeforeClean      Name = "before-clean"
	TargetTaken      Name = "target-taken"
	BeforeRelease    Name = "before-release"
	AfterRelease     Name = "after-release"
	OutboxRetained   Name = "outbox-retained"
	ExpandRead       Name = "expand-read"
	ExpandWritten    Name = "expand-written"
	ExpandCommitted  Name = "expand-committed"
	MigrationApplied Name = "migration-applied"
	MigrationsDone   Name = "migrations-done"
	FileWritten      Name = "file-written"
	FileRenamed      Name = "file-renamed"
	FileRemoved      Name = "file-removed"
	BeforeOpen       Name = "before-open"
	OpenPiece        Name = "open-piece"
	AfterOpen        Name = "after-open"
	OperationClaimed Name = "operation-claimed"
	TasksRecorded    Name = "tasks-recorded"
	BeforeConfirm    Name = "before-confirm"
	ReportRead       Name = "report-read"
	ReportWritten    Name = "report-written"
	AgentBeforeCall  Name = "agent-before-call"
	AgentAfterCall   Name = "agent-after-call"
)

// Place is a point and where it is.
type Place struct {
	Name  Name
	Where string
}

// All lists every point there is.
func All() []Place {
	return []Place{
		{LeaderTaken, "The leadership's lease is taken, and the leader has not looked at the database yet."},
		{AfterTick, "A revision is committed, and this process has not told its targets of it."},
		{CursorStarted, "A target's first cursor is committed with the sync that it asks for, and nothing is read from there on."},
		{BeforeHandOut, "A page of the outbox is read, and none of its objects is in the queue."},
		{HandingOut, "Some objects of a page are in the queue, and others are not."},
		{BeforeCall, "An object's row is read, and its call has not begun."},
		{AfterCall, "The target has answered, and the ledger does not know."},
		{BeforeSettle, "Results are counted for the cursor, and the transaction that writes both has not begun."},
		{AfterSettle, "Results and cursor are committed, and this process has not taken note of it."},
		{LateRecorded, "Objects that hold the cursor for too long have their ledger rows, and the cursor stands before them."},
		{DeletesParked, "A batch or a sync has parked its deletes, and the guard has not decided on them."},
		{DeletesDecided, "The guard's decision on parked deletes is committed, and nobody has acted on it."},
		{SyncPage, "A sync has compared a page of rows, and has not asked for the next."},
		{SyncRowsDone, "A sync has compared every row, and has not looked for what no row wants."},
		{SyncUnfinished, "Everything that a sync found is settled, and it does not count as complete yet."},
		{BeforeClean, "The sync after a crash is complete, and the target does not count as clean yet."},
		{TargetTaken, "A target's lease is taken, and its cursor and ledger are not read yet."},
		{BeforeRelease, "A target is drained, and its lease is not given back."},
		{AfterRelease, "A target's lease is given back, and the process has not taken leave."},
		{OutboxRetained, "Retention has taken one of its steps, and the next (to empty what it moved on from) has not begun."},
		{ExpandRead, "Changes of base tables are read, and the objects that they concern are not marked."},
		{ExpandWritten, "The objects that changes of base tables concern are marked in a transaction that has not ended."},
		{ExpandCommitted, "The objects that changes of base tables concern are marked, and the leader has not been woken for them."},
		{MigrationApplied, "One migration is applied, and the next has not begun."},
		{MigrationsDone, "Every migration is applied, and capture code has not been generated anew."},
		{FileWritten, "A file's content stands in a temporary file beside it, which has not taken its place."},
		{FileRenamed, "A file has its new content, and no reload has been asked for."},
		{FileRemoved, "A file is removed, and no reload has been asked for."},
		{BeforeOpen, "The changes of an apply are all before a tick, and none of its objects is written down."},
		{OpenPiece, "Some of an apply's objects are written down, and others are not."},
		{AfterOpen, "All objects of an apply are written down, and the leader has not gone on from there."},
		{OperationClaimed, "The gate of an operation is open, and none of its objects is in the queue."},
		{TasksRecorded, "What came of an apply's objects is committed, and this process has not taken note of it."},
		{BeforeConfirm, "No call of an operation that is being stopped is under way any more, and its apply does not know."},
		{ReportRead, "The whole report of a client is read, and nothing of it is written."},
		{ReportWritten, "The report of a client is committed, nothing that waits for it is due, and the client has no answer."},
		{AgentBeforeCall, "The state of an agent has an object, and the agent has not begun its call."},
		{AgentAfterCall, "The target has answered an agent, and neither the agent's state nor the server has the result."},
	}
}
