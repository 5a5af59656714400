package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// naivePeer is what one writes first: a trigger inserts into an outbox and notifies in every commit; one reader listens
// and takes what is there.
type naivePeer struct {
	captured

	loop *loop
}

// naiveBatch is how many rows the reader takes at once.
const naiveBatch = 5000

func (*naivePeer) about() about {
	return about{name: "outbox and NOTIFY", noSnapshot: "An outbox has only what was written after it was made."}
}

func (*naivePeer) prepare(ctx context.Context, s *stage) error {
	return s.exec(ctx,
		`CREATE TABLE outbox (seq bigserial PRIMARY KEY, id int NOT NULL, n bigint NOT NULL, payload text NOT NULL)`,
		`CREATE FUNCTION to_outbox() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO outbox (id, n, payload) VALUES (NEW.id, NEW.n, NEW.payload);
			PERFORM pg_notify('outbox', '');
			RETURN NULL;
		END $$`,
		`CREATE TRIGGER to_outbox AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION to_outbox()`)
}

func (p *naivePeer) start(ctx context.Context, s *stage) error {
	cfg, err := pgx.ParseConfig(s.url)
	if err != nil {
		return fmt.Errorf("configure the reader: %w", err)
	}
	cfg.RuntimeParams["synchronous_commit"] = "off"
	r := &naiveReader{deliver: s.deliver}
	// One flag for all notifications that have come: a thousand of them ask for one look.
	cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { r.woken = true }
	if r.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return fmt.Errorf("connect the reader: %w", err)
	}
	if _, err := r.conn.Exec(ctx, "LISTEN outbox"); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	p.loop = goLoop(ctx, r.run)
	return nil
}

func (p *naivePeer) stop(context.Context) error { return p.loop.stop() }

// naiveReader is the consumer; woken belongs to whoever reads from conn.
type naiveReader struct {
	conn    *pgx.Conn
	woken   bool
	deliver func(change)
}

func (r *naiveReader) run(ctx context.Context) error {
	defer r.conn.Close(context.WithoutCancel(ctx))
	for {
		for r.woken {
			r.woken = false
			for more := true; more; {
				taken, err := r.take(ctx)
				if err != nil {
					return err
				}
				more = taken == naiveBatch
			}
		}
		if err := r.conn.PgConn().WaitForNotification(ctx); err != nil {
			return fmt.Errorf("wait for a notification: %w", err)
		}
	}
}

// take delivers a batch before it commits that the rows are gone, so that a crash loses nothing.
func (r *naiveReader) take(ctx context.Context) (taken int, err error) {
	err = pgx.BeginFunc(ctx, r.conn, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "DELETE FROM outbox WHERE seq IN (SELECT seq FROM outbox ORDER BY seq LIMIT $1) RETURNING id, n, payload", naiveBatch)
		if err != nil {
			return err
		}
		var row state
		_, err = pgx.ForEachRow(rows, []any{&row.ID, &row.N, &row.Payload}, func() error {
			taken++
			r.deliver(change{row.ID, row.N})
			return nil
		})
		return err
	})
	if err != nil {
		return taken, fmt.Errorf("take from the outbox: %w", err)
	}
	return taken, nil
}
