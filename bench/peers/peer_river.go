package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	// riverWorkers is how many jobs River may work at once; it also bounds how many it fetches at once.
	riverWorkers = 1000
	riverConns   = 10
	// riverPoll is how often River looks for jobs that no notification told it of: its minimum.
	riverPoll = river.FetchPollIntervalMin
)

// thingJob is the job: the row as it was committed.
type thingJob struct{ state }

// Kind names the job in river_job.
func (thingJob) Kind() string { return "thing" }

// riverPeer inserts a River job in the writer's transaction, by River's own client.
type riverPeer struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func (*riverPeer) about() about {
	return about{name: "River, job in the transaction", noSnapshot: "A queue has only what was inserted into it."}
}

func (*riverPeer) prepare(ctx context.Context, s *stage) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), nil)
	if err != nil {
		return fmt.Errorf("make River's migrator: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrate River: %w", err)
	}
	return nil
}

func (p *riverPeer) start(ctx context.Context, s *stage) (err error) {
	if p.pool, err = consumerPool(ctx, s.url, riverConns); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[thingJob]) error {
		s.deliver(change{job.Args.ID, job.Args.N})
		return nil
	}))
	// The cooldown delays a fetch after a notification, and bounds fetches a second: its minimum is best for both.
	p.client, err = river.NewClient(riverpgxv5.New(p.pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}}, Workers: workers,
		FetchCooldown: river.FetchCooldownMin, FetchPollInterval: riverPoll,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return fmt.Errorf("make River's client: %w", err)
	}
	// River ends with Stop: a context that ends early would cancel jobs that it has fetched.
	if err := p.client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("start River: %w", err)
	}
	return nil
}

func (p *riverPeer) commit(ctx context.Context, conn *pgx.Conn, c change) (time.Time, error) {
	return transact(ctx, conn, update(ctx, "things", c), func(tx pgx.Tx) error {
		if _, err := p.client.InsertTx(ctx, tx, thingJob{stateOf(c)}, nil); err != nil {
			return fmt.Errorf("insert a job: %w", err)
		}
		return nil
	})
}

func (p *riverPeer) commitAll(ctx context.Context, conn *pgx.Conn, rows int, n int64) (time.Time, error) {
	return transact(ctx, conn, updateAll(ctx, rows, n), func(tx pgx.Tx) error {
		jobs := make([]river.InsertManyParams, rows)
		for i := range jobs {
			jobs[i].Args = thingJob{stateOf(change{i + 1, n})}
		}
		if _, err := p.client.InsertManyFastTx(ctx, tx, jobs); err != nil {
			return fmt.Errorf("insert %d jobs: %w", rows, err)
		}
		return nil
	})
}

func (p *riverPeer) stop(ctx context.Context) (err error) {
	if p.client != nil {
		ctx, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		if err = p.client.Stop(ctx); err != nil {
			err = fmt.Errorf("stop River: %w", err)
		}
	}
	if p.pool != nil {
		p.pool.Close()
	}
	return err
}

// riverTriggerPeer lets a trigger on the user's table insert the job, and notify as River's client does.
type riverTriggerPeer struct {
	riverPeer
	captured
}

func (*riverTriggerPeer) about() about {
	return about{name: "River, job by a trigger", noSnapshot: "A queue has only what was inserted into it."}
}

func (p *riverTriggerPeer) prepare(ctx context.Context, s *stage) error {
	if err := p.riverPeer.prepare(ctx, s); err != nil {
		return err
	}
	return s.exec(ctx,
		`CREATE FUNCTION to_river() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO river_job (kind, args, max_attempts)
				VALUES ('thing', jsonb_build_object('id', NEW.id, 'n', NEW.n, 'payload', NEW.payload), 25);
			PERFORM pg_notify(current_schema || '.river_insert', '{"queue": "default"}');
			RETURN NULL;
		END $$`,
		`CREATE TRIGGER to_river AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION to_river()`)
}

func (p *riverTriggerPeer) commit(ctx context.Context, conn *pgx.Conn, c change) (time.Time, error) {
	return p.captured.commit(ctx, conn, c)
}

func (p *riverTriggerPeer) commitAll(ctx context.Context, conn *pgx.Conn, rows int, n int64) (time.Time, error) {
	return p.captured.commitAll(ctx, conn, rows, n)
}
