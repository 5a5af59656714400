package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// slotName is the replication slot's; it is temporary, so that a run that dies keeps no WAL on the server.
const slotName = "reconciler_bench_peers"

// pgoutputPeer reads the table's changes by logical decoding and does nothing else: the floor of every tool that is
// built on a replication slot. It keeps no position, retries nothing and serves one consumer.
type pgoutputPeer struct {
	captured

	stage *stage
	loop  *loop
}

func (*pgoutputPeer) about() about { return about{name: "pgoutput, bare reader"} }

func (p *pgoutputPeer) prepare(ctx context.Context, s *stage) error {
	p.stage = s
	return s.exec(ctx, "CREATE PUBLICATION things FOR TABLE things")
}

func (p *pgoutputPeer) start(ctx context.Context, s *stage) error {
	at, err := url.Parse(s.url)
	if err != nil {
		return errors.New("the URL cannot be read: expected postgres://user@host:port/database")
	}
	query := at.Query()
	query.Set("replication", "database")
	at.RawQuery = query.Encode()
	conn, err := pgconn.Connect(ctx, at.String())
	if err != nil {
		return fmt.Errorf("connect for replication: %w", err)
	}
	slot, err := pglogrepl.CreateReplicationSlot(ctx, conn, slotName, "pgoutput", pglogrepl.CreateReplicationSlotOptions{Temporary: true})
	if err != nil {
		return errors.Join(fmt.Errorf("create the replication slot: %w", err), conn.Close(ctx))
	}
	from, err := pglogrepl.ParseLSN(slot.ConsistentPoint)
	if err == nil {
		err = p.snapshot(ctx, slot.SnapshotName)
	}
	if err == nil {
		err = pglogrepl.StartReplication(ctx, conn, slotName, from, pglogrepl.StartReplicationOptions{
			PluginArgs: []string{"proto_version '1'", "publication_names 'things'"},
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start replication: %w", err), conn.Close(ctx))
	}
	r := &walReader{conn: conn, deliver: s.deliver, relations: map[uint32]columns{}, seen: from}
	p.loop = goLoop(ctx, r.run)
	return nil
}

// snapshot delivers every row as it was where the slot begins.
func (p *pgoutputPeer) snapshot(ctx context.Context, name string) error {
	return pgx.BeginTxFunc(ctx, p.stage.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+name+"'"); err != nil {
			return fmt.Errorf("import the snapshot: %w", err)
		}
		rows, err := tx.Query(ctx, "SELECT id, n, payload FROM things")
		if err != nil {
			return fmt.Errorf("read things: %w", err)
		}
		var row state
		_, err = pgx.ForEachRow(rows, []any{&row.ID, &row.N, &row.Payload}, func() error {
			p.stage.deliver(change{row.ID, row.N})
			return nil
		})
		return err
	})
}

// stop also waits until the server has let go of the slot, without which the database cannot be dropped.
func (p *pgoutputPeer) stop(ctx context.Context) error {
	err := p.loop.stop()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for left := 1; left > 0; {
		if scanErr := p.stage.pool.QueryRow(ctx, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", slotName).Scan(&left); scanErr != nil {
			return errors.Join(err, fmt.Errorf("wait for the end of the slot: %w", scanErr))
		}
		time.Sleep(5 * time.Millisecond)
	}
	return err
}

// columns are the places of what a delivery needs in the tuples of a relation.
type columns struct{ id, n int }

// walReader receives from a slot.
type walReader struct {
	conn      *pgconn.PgConn
	deliver   func(change)
	relations map[uint32]columns
	seen      pglogrepl.LSN
	reported  time.Time
}

// reportEvery is how often the server is told how far the reader is.
const reportEvery = time.Second

func (r *walReader) run(ctx context.Context) error {
	defer func() { _ = r.conn.Close(context.WithoutCancel(ctx)) }()
	for {
		message, err := r.conn.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		asked := false
		switch m := message.(type) {
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("replication: %w", pgconn.ErrorResponseToPgError(m))
		case *pgproto3.CopyData:
			if asked, err = r.take(m.Data); err != nil {
				return err
			}
		}
		// The server asks long before it loses patience, so a reader that only ever answers needs no clock.
		if asked || time.Since(r.reported) > reportEvery {
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, r.conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: r.seen}); err != nil {
				return fmt.Errorf("report the position: %w", err)
			}
			r.reported = time.Now()
		}
	}
}

// take handles one message of the stream, and says whether the server asks for a report.
func (r *walReader) take(data []byte) (asked bool, err error) {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		alive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return false, fmt.Errorf("read a keepalive: %w", err)
		}
		r.seen = max(r.seen, alive.ServerWALEnd)
		return alive.ReplyRequested, nil
	case pglogrepl.XLogDataByteID:
		wal, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return false, fmt.Errorf("read WAL data: %w", err)
		}
		r.seen = max(r.seen, wal.WALStart)
		message, err := pglogrepl.Parse(wal.WALData)
		if err != nil {
			return false, fmt.Errorf("read a logical message: %w", err)
		}
		return false, r.decode(message)
	}
	return false, nil
}

func (r *walReader) decode(message pglogrepl.Message) error {
	switch m := message.(type) {
	case *pglogrepl.RelationMessage:
		var at columns
		for i, column := range m.Columns {
			switch column.Name {
			case "id":
				at.id = i
			case "n":
				at.n = i
			}
		}
		r.relations[m.RelationID] = at
	case *pglogrepl.InsertMessage:
		return r.row(m.RelationID, m.Tuple)
	case *pglogrepl.UpdateMessage:
		return r.row(m.RelationID, m.NewTuple)
	}
	return nil
}

func (r *walReader) row(relation uint32, tuple *pglogrepl.TupleData) error {
	at := r.relations[relation]
	id, err := strconv.Atoi(string(tuple.Columns[at.id].Data))
	if err != nil {
		return fmt.Errorf("read the id of a row: %w", err)
	}
	n, err := strconv.ParseInt(string(tuple.Columns[at.n].Data), 10, 64)
	if err != nil {
		return fmt.Errorf("read the version of row %d: %w", id, err)
	}
	r.deliver(change{id, n})
	return nil
}
