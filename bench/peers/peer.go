package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// change is a new version of one object: the row id of the table things has n.
type change struct {
	id int
	n  int64
}

// state is what a consumer is given, whatever brings it: the row as it was committed.
type state struct {
	ID      int    `json:"id"`
	N       int64  `json:"n"`
	Payload string `json:"payload"`
}

// payload is what each row carries besides its version.
const payload = "a hundred bytes that nobody looks at, so that a delivery carries what a small row of a real table has"

// stateOf is the row after a change.
func stateOf(c change) state { return state{ID: c.id, N: c.n, Payload: payload} }

// about is what a peer says of itself. Where it cannot do something, it says why: the table shows a dash and that sentence.
type about struct {
	name string
	// coalesces says that the consumer is given the newest version and may never see those in between.
	coalesces  bool
	noTable    string // why there is no user's table whose writes could be slower
	noGiant    string // why there is no transaction of many rows
	noSnapshot string // why what was there before is not delivered
}

// stage is where a peer works: a database with the table things in it, and somebody to deliver to.
type stage struct {
	url     string
	pool    *pgxpool.Pool // for set-up; writers use it too
	deliver func(change)
}

// peer is one way to get changes out of PostgreSQL to a consumer that is called with each.
type peer interface {
	about() about
	// prepare makes the schema that it needs; what it takes is not measured.
	prepare(ctx context.Context, s *stage) error
	// start starts the consumer and returns when it is up to date, the snapshot included where there is one.
	start(ctx context.Context, s *stage) error
	// commit makes a change over the connection of one writer, and returns when its commit was sent.
	commit(ctx context.Context, conn *pgx.Conn, c change) (sent time.Time, err error)
	// stop ends the consumer, and says what went wrong with it while it ran.
	stop(ctx context.Context) error
}

// bulkPeer can change many rows in one transaction.
type bulkPeer interface {
	// commitAll sets n of the rows 1 to rows, and returns when the commit was sent.
	commitAll(ctx context.Context, conn *pgx.Conn, rows int, n int64) (sent time.Time, err error)
}

// peers makes all that are compared, in the order of the table, each new for every visit.
var peers = []func() peer{
	func() peer { return &reconcilerPeer{} },
	func() peer { return &pgoutputPeer{} },
	func() peer { return &naivePeer{} },
	func() peer { return &riverPeer{} },
	func() peer { return &riverTriggerPeer{} },
	func() peer { return &watermillPeer{} },
	func() peer { return &kinePeer{count: 1} },
	func() peer { return &kinePeer{count: 2} },
}

// transact runs steps in one transaction and returns when its commit was sent. Every peer that writes to the user's
// table pays the same begin, update and commit; who publishes in the transaction pays for that on top.
func transact(ctx context.Context, conn *pgx.Conn, steps ...func(pgx.Tx) error) (sent time.Time, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return sent, fmt.Errorf("begin: %w", err)
	}
	for _, step := range steps {
		if err := step(tx); err != nil {
			_ = tx.Rollback(ctx)
			return sent, err
		}
	}
	sent = time.Now()
	if err := tx.Commit(ctx); err != nil {
		return sent, fmt.Errorf("commit: %w", err)
	}
	return sent, nil
}

// update is the step that changes one row of a table.
func update(ctx context.Context, table string, c change) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE "+pgx.Identifier{table}.Sanitize()+" SET n = $2 WHERE id = $1", c.id, c.n); err != nil {
			return fmt.Errorf("update %s: %w", table, err)
		}
		return nil
	}
}

// updateAll is the step that changes the first rows of things.
func updateAll(ctx context.Context, rows int, n int64) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE things SET n = $2 WHERE id <= $1", rows, n); err != nil {
			return fmt.Errorf("update %d rows: %w", rows, err)
		}
		return nil
	}
}

// captured is the write path of everything that captures the user's table: the writer only updates it.
type captured struct{}

func (captured) commit(ctx context.Context, conn *pgx.Conn, c change) (time.Time, error) {
	return transact(ctx, conn, update(ctx, "things", c))
}

func (captured) commitAll(ctx context.Context, conn *pgx.Conn, rows int, n int64) (time.Time, error) {
	return transact(ctx, conn, updateAll(ctx, rows, n))
}
