package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	watermillTopic = "things"
	// watermillPoll is how long the subscriber sleeps when it has found nothing: it is not notified, so this is most of
	// the latency. When there is something, it does not sleep.
	watermillPoll = time.Millisecond
	// watermillBatch is how many messages are read at once; 100 without it.
	watermillBatch = 1000
	// watermillInsert is how many messages one insert carries: each takes three of the 65,535 parameters of a statement.
	watermillInsert = 20_000
)

// watermillPeer publishes to watermill-sql in the writer's transaction.
type watermillPeer struct {
	pool *pgxpool.Pool
	sub  *sql.Subscriber
	loop *loop
}

func (*watermillPeer) about() about {
	return about{name: "watermill-sql, published in the transaction", noSnapshot: "A topic has only what was published to it."}
}

func (p *watermillPeer) subscriber(db sql.Beginner) (*sql.Subscriber, error) {
	sub, err := sql.NewSubscriber(db, sql.SubscriberConfig{
		SchemaAdapter: sql.DefaultPostgreSQLSchema{SubscribeBatchSize: watermillBatch}, OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: watermillPoll, InitializeSchema: false,
	}, watermill.NewSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	if err != nil {
		return nil, fmt.Errorf("make the subscriber: %w", err)
	}
	return sub, nil
}

func (p *watermillPeer) prepare(_ context.Context, s *stage) error {
	sub, err := p.subscriber(sql.BeginnerFromPgx(s.pool))
	if err != nil {
		return err
	}
	if err := sub.SubscribeInitialize(watermillTopic); err != nil {
		return fmt.Errorf("make the topic's tables: %w", err)
	}
	return sub.Close()
}

func (p *watermillPeer) start(ctx context.Context, s *stage) (err error) {
	if p.pool, err = consumerPool(ctx, s.url, 4); err != nil {
		return err
	}
	if p.sub, err = p.subscriber(sql.BeginnerFromPgx(p.pool)); err != nil {
		return err
	}
	messages, err := p.sub.Subscribe(context.WithoutCancel(ctx), watermillTopic)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	p.loop = goLoop(ctx, func(context.Context) error {
		for m := range messages {
			var row state
			if err := json.Unmarshal(m.Payload, &row); err != nil {
				return fmt.Errorf("read a message: %w", err)
			}
			s.deliver(change{row.ID, row.N})
			m.Ack()
		}
		return nil
	})
	return nil
}

// publish is the step that inserts the messages.
func publish(ctx context.Context, changes ...change) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		publisher, err := sql.NewPublisher(sql.TxFromPgx(tx), sql.PublisherConfig{SchemaAdapter: sql.DefaultPostgreSQLSchema{}}, watermill.NopLogger{})
		if err != nil {
			return fmt.Errorf("make the publisher: %w", err)
		}
		messages := make([]*message.Message, len(changes))
		for i, c := range changes {
			text, err := json.Marshal(stateOf(c))
			if err != nil {
				return err
			}
			messages[i] = message.NewMessageWithContext(ctx, watermill.NewUUID(), text)
		}
		if err := publisher.Publish(watermillTopic, messages...); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		return nil
	}
}

func (*watermillPeer) commit(ctx context.Context, conn *pgx.Conn, c change) (time.Time, error) {
	return transact(ctx, conn, update(ctx, "things", c), publish(ctx, c))
}

func (*watermillPeer) commitAll(ctx context.Context, conn *pgx.Conn, rows int, n int64) (time.Time, error) {
	steps := []func(pgx.Tx) error{updateAll(ctx, rows, n)}
	for from := 1; from <= rows; from += watermillInsert {
		part := make([]change, min(watermillInsert, rows-from+1))
		for i := range part {
			part[i] = change{from + i, n}
		}
		steps = append(steps, publish(ctx, part...))
	}
	return transact(ctx, conn, steps...)
}

func (p *watermillPeer) stop(context.Context) (err error) {
	if p.sub != nil {
		err = p.sub.Close()
	}
	if loopErr := p.loop.stop(); err == nil {
		err = loopErr
	}
	if p.pool != nil {
		p.pool.Close()
	}
	return err
}
