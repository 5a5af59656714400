package faults_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	keyCount      = 40      // keys of each table that writers share
	reservedFrom  = 1000    // keys from here belong to one writer each, for transactions that stay open
	reservedCount = 100     // of these, for each writer
	bulkFrom      = 100_000 // keys of large transactions
	writerName    = "faults writer"
)

// writer changes rows at random on a connection of its own.
type writer struct {
	world    *world
	number   int
	r        *rand.Rand
	rollouts *rand.Rand // of which transactions are applies
	conn     *pgx.Conn
	open     []*openTx
	gids     []string // prepared transactions
	next     int      // reserved key
	done     <-chan struct{}
}

// openTx is a transaction that stays open over other steps.
type openTx struct {
	conn  *pgx.Conn
	began time.Time
	until time.Time
}

func (w *world) newWriter(number int, done <-chan struct{}) *writer {
	return &writer{
		world: w, number: number, r: w.plan.stream(200 + uint64(number)), rollouts: w.plan.stream(streamRollouts + uint64(number)), done: done,
	}
}

// run writes until done, then ends its open transactions in some order.
func (x *writer) run() {
	ctx := context.WithoutCancel(x.world.t.Context())
	for {
		select {
		case <-x.done:
			x.finish(ctx)
			return
		default:
		}
		x.look(ctx, x.step(ctx))
		x.endOld(ctx)
		pause := between(x.r, time.Millisecond, 60*time.Millisecond)
		if x.r.IntN(20) == 0 {
			pause = between(x.r, 100*time.Millisecond, time.Second)
		}
		pass(pause, x.done)
	}
}

func (x *writer) finish(ctx context.Context) {
	x.r.Shuffle(len(x.open), func(i, j int) { x.open[i], x.open[j] = x.open[j], x.open[i] })
	for _, tx := range x.open {
		x.look(ctx, x.end(ctx, tx))
	}
	if x.conn != nil {
		_ = x.conn.Close(ctx) // nothing is open on it
	}
}

// connect returns a connection of a writer.
func (x *writer) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	config, err := pgx.ParseConfig(x.world.url())
	if err != nil {
		return nil, err
	}
	maps.Copy(config.RuntimeParams, mild)
	if x.world.plan.has(faultSettings) {
		config.RuntimeParams["TimeZone"] = zones[x.number%len(zones)]
	}
	config.RuntimeParams["application_name"] = writerName
	config.RuntimeParams["lock_timeout"] = "10s"
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, config)
	if err == nil {
		x.world.writerPIDs.Store(conn.PgConn().PID(), true)
	}
	return conn, err
}

// step does one thing.
func (x *writer) step(ctx context.Context) error {
	if x.conn == nil || x.conn.IsClosed() {
		conn, err := x.connect(ctx)
		if err != nil {
			pass(50*time.Millisecond, x.done)
			return err
		}
		x.conn = conn
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, errors.New("the writer's statement takes too long"))
	defer cancel()
	switch n := x.r.IntN(1000); {
	case n < 40 && len(x.open) < 3:
		return x.keepOpen(ctx)
	case n < 80 && !x.world.plan.Notify:
		return x.prepare(ctx)
	case n < 110:
		return x.endPrepared(ctx)
	case n < 125 && !x.world.plan.Honest:
		return x.run1(ctx, "BEGIN; SET LOCAL session_replication_role = replica; "+x.statements()+"; COMMIT")
	case n < 127:
		return x.run1(ctx, "BEGIN; SET LOCAL lock_timeout = '200ms'; "+x.rollout("TRUNCATE "+x.table().main)+"; COMMIT")
	case n < 133:
		return x.run1(ctx, "BEGIN; "+x.rollout(x.bulk())+"; COMMIT")
	case n < 200:
		return x.run1(ctx, "BEGIN; "+x.rollout(x.statements())+"; ROLLBACK")
	case n < 300:
		return x.run1(ctx, "BEGIN; "+x.rollout(x.statements()+"; SAVEPOINT a; "+x.statements()+"; ROLLBACK TO a; "+x.statements()+"; SAVEPOINT b; "+x.statements())+"; COMMIT")
	case n < 450:
		return x.run1(ctx, "BEGIN; "+x.rollout(x.statements())+"; COMMIT")
	default:
		return x.run1(ctx, x.rollout(x.statement(x.table(), x.key())))
	}
}

func (x *writer) run1(ctx context.Context, sql string) error {
	_, err := x.conn.Exec(ctx, sql)
	if err != nil && !x.conn.IsClosed() {
		_, rollback := x.conn.Exec(ctx, "ROLLBACK")
		err = errors.Join(err, rollback)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", clip(sql), err)
	}
	if err == nil {
		x.world.count("transactions", 1)
	}
	return err
}

// keepOpen begins a transaction on keys that no other writer touches, and leaves it open.
func (x *writer) keepOpen(ctx context.Context) error {
	conn, err := x.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "BEGIN; "+x.rollout(x.reserved())); err != nil {
		_ = conn.Close(ctx) // it may have ended already
		return err
	}
	x.open = append(x.open, &openTx{conn, time.Now(), time.Now().Add(between(x.r, 100*time.Millisecond, 8*time.Second))})
	return nil
}

// endOld ends the open transactions whose time has come, the youngest first.
func (x *writer) endOld(ctx context.Context) {
	for i, tx := range slices.Backward(x.open) {
		if time.Now().After(tx.until) {
			x.open = slices.Delete(x.open, i, i+1)
			x.look(ctx, x.end(ctx, tx))
		}
	}
}

func (x *writer) end(ctx context.Context, tx *openTx) error {
	how := "COMMIT"
	if x.r.IntN(5) == 0 {
		how = "ROLLBACK"
	}
	_, err := tx.conn.Exec(ctx, how)
	if err != nil {
		err = fmt.Errorf("%s after %s: %w", how, time.Since(tx.began), err)
	}
	_ = tx.conn.Close(ctx) // it may have ended long ago
	if err != nil && !x.world.timeline.healthy(partWriters, tx.began, time.Now()) {
		return nil
	}
	x.world.count("transactions left open", 1)
	return err
}

func (x *writer) prepare(ctx context.Context) error {
	if len(x.gids) >= 3 {
		return x.endPrepared(ctx)
	}
	gid := fmt.Sprintf("w%d-%d", x.number, x.r.Uint64())
	err := x.run1(ctx, "BEGIN; "+x.rollout(x.reserved())+"; PREPARE TRANSACTION '"+gid+"'")
	if err == nil {
		x.gids = append(x.gids, gid)
		x.world.count("prepared transactions", 1)
	}
	return err
}

func (x *writer) endPrepared(ctx context.Context) error {
	if len(x.gids) == 0 {
		return nil
	}
	i := x.r.IntN(len(x.gids))
	how := "COMMIT"
	if x.r.IntN(5) == 0 {
		how = "ROLLBACK"
	}
	err := x.run1(ctx, how+" PREPARED '"+x.gids[i]+"'")
	if err == nil {
		x.gids = slices.Delete(x.gids, i, i+1)
	}
	return err
}

// look judges an error. Those that writers bring upon themselves or each other, and those of the faults, are no
// matter; every other one is the product's. I8.
func (x *writer) look(ctx context.Context, err error) {
	if err == nil || x.innocent(err) {
		return
	}
	if ctx.Err() == nil {
		x.world.violate("I8 writer", "a writer's transaction failed: %v", err)
	}
}

var processNumber = regexp.MustCompile(`[Pp]rocess (\d+)`)

func (x *writer) innocent(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	if !ok && x.world.clock != nil && errors.Is(err, context.DeadlineExceeded) {
		return true // PostgreSQL's lock_timeout waits for the time of day at which it would have ended
	}
	if !ok {
		return x.world.mayLoseConnections(err)
	}
	switch failure.Code {
	case "57P01", "57P02", "57P03", "53300": // ended, crashed, starting, too many
		return true
	case "23505": // of a key that exists
		return failure.SchemaName != "reconciler"
	case "42704": // the prepared transaction was ended already: its connection broke before the answer came
		return strings.Contains(failure.Message, "prepared transaction")
	case "55P03":
		x.world.count("lock timeouts among writers", 1)
		return true // see watchWaits for waits for the product
	case "40P01":
		for _, match := range processNumber.FindAllStringSubmatch(failure.Detail, -1) {
			pid, _ := strconv.ParseUint(match[1], 10, 32)
			if _, known := x.world.writerPIDs.Load(uint32(pid)); !known {
				return false
			}
		}
		x.world.count("deadlocks among writers", 1)
		return true
	}
	return false
}

// pids of writers, those of the past too.
type pidSet = sync.Map
