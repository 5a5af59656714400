package main

import "slices"

// Packages whose tests notice.
const (
	applyTests   = "./internal/apply"
	desiredTests = "./internal/desired"
	faultTests   = "./internal/faulttest"
	leaseTests   = "./internal/lease"
	gatesFile    = "internal/desired/gates.go"
	outboxTests  = "./internal/outbox"
	serverTests  = "./internal/server"

	ownerFile   = "internal/apply/owner.go"
	firstFile   = "internal/apply/first.go"
	workFile    = "internal/apply/work.go"
	queueFile   = "internal/apply/queue.go"
	readerFile  = "internal/apply/reader.go"
	settlerFile = "internal/apply/settler.go"
	decideFile  = "internal/apply/decide.go"
	lookFile    = "internal/apply/look.go"
	guardFile   = "internal/apply/guard.go"
	trackerFile = "internal/apply/tracker.go"
	tickerFile  = "internal/outbox/ticker.go"
	feedFile    = "internal/outbox/feed.go"
	stewardFile = "internal/outbox/steward.go"
	scanFile    = "internal/sync/scan.go"
	runnerFile  = "internal/sync/runner.go"
	grantFile   = "internal/lease/grant.go"
	tickSQL     = "internal/store/tick.sql.go"
	syncSQL     = "internal/store/sync.sql.go"
	desiredPage = "internal/desired/page.go"
	leaseSQL    = "internal/store/lease.sql.go"
	ledgerSQL   = "internal/store/ledger.sql.go"
	captureSQL  = "db/migrations/00003_capture.sql"
	cursorSQL   = "db/migrations/00005_cursor.sql"
	waitSQL     = "db/migrations/00009_wait.sql"
	settleSQL   = "db/migrations/00012_settle.sql"
	desiredRead = "internal/desired/read.go"
	reloadFile  = "internal/driver/file/reload.go"
	appliesSQL  = "db/migrations/00013_applies.sql"
	turnFile    = "internal/apply/turn.go"
	serverFile  = "internal/server/server.go"
)

// All lists every mutant.
func All() []Mutant {
	return slices.Concat(loss, stall, staleness, isolation, proof, massDeletes, memory, writers, bounds, owners, lanes, plans, restores, applies)
}
