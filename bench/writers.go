package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgreconciler/reconciler/internal/measure"
)

// writtenRows is how many rows each of the tables has that writers update.
const writtenRows = 10_000

// writtenTables are what the commits are measured on, all alike: one that nobody tracks, one whose trigger inserts into an
// outbox of the same shape and does nothing else, a tracked one, and the naive design, which notifies in each commit.
var writtenTables = []string{"plain", "sole", "tracked", "naive"}

func writtenSchema() []string {
	var statements []string
	for _, name := range writtenTables {
		statements = append(statements, fmt.Sprintf(`CREATE TABLE %[1]s (id int PRIMARY KEY, payload text NOT NULL, n int NOT NULL DEFAULT 0) WITH (fillfactor = 50);
			INSERT INTO %[1]s SELECT i, repeat('x', 100), 0 FROM generate_series(1, %[2]d) AS i`, name, writtenRows))
	}
	return append(statements,
		`SELECT reconciler.track('bench', 'tracked', '{id}', '''sink''')`,
		`CREATE TABLE sole_outbox (LIKE reconciler.outbox INCLUDING DEFAULTS); CREATE INDEX ON sole_outbox (xid, seq);
		CREATE FUNCTION sole() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
			INSERT INTO public.sole_outbox (resource_id, target, key) VALUES (1, 'sink', NEW.id::text); RETURN NULL; END $$;
		CREATE TRIGGER sole AFTER UPDATE ON sole FOR EACH ROW EXECUTE FUNCTION sole()`,
		`CREATE TABLE naive_outbox (id bigserial PRIMARY KEY, key text, at timestamptz DEFAULT now());
		CREATE FUNCTION naive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO naive_outbox (key) VALUES (NEW.id::text); PERFORM pg_notify('naive', ''); RETURN NULL; END $$;
		CREATE TRIGGER naive AFTER UPDATE ON naive FOR EACH ROW EXECUTE FUNCTION naive()`,
		`VACUUM ANALYZE`)
}

// readNaive is the consumer of the naive design: it wakes up and takes what is there. It ends with ctx.
func (l *lab) readNaive(ctx context.Context) (wait func(), err error) {
	conn, err := pgx.Connect(ctx, l.url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN naive"); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer conn.Close(context.WithoutCancel(ctx))
		for ctx.Err() == nil {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			if _, err := conn.Exec(ctx, "DELETE FROM naive_outbox WHERE id IN (SELECT id FROM naive_outbox ORDER BY id LIMIT 5000)"); err != nil {
				return
			}
		}
	}()
	return func() { <-done }, nil
}

// benchWriters measures what tracking costs those who write, while the product runs and while it does not.
func benchWriters(ctx context.Context, l *lab) ([]Figure, error) {
	if err := l.fresh(ctx, writtenSchema()...); err != nil {
		return nil, err
	}
	naiveCtx, endNaive := context.WithCancel(ctx)
	defer endNaive()
	waitNaive, err := l.readNaive(naiveCtx)
	if err != nil {
		return nil, err
	}
	defer func() { endNaive(); waitNaive() }()
	crowd := []int{1, 16, 64}
	rates := map[string][]float64{} // by table, product and number of writers
	note := func(table, state string, writers int) error {
		rate, _, err := measure.Commits(ctx, measure.Load{Pool: l.pool, Table: table, Rows: writtenRows, Writers: writers, Length: l.length})
		name := fmt.Sprintf("%s %s %d", table, state, writers)
		rates[name] = append(rates[name], rate)
		return err
	}
	for range l.rounds {
		for _, writers := range crowd {
			for _, table := range []string{"plain", "sole", "tracked"} {
				if err := note(table, "stopped", writers); err != nil {
					return nil, err
				}
			}
		}
		p, err := l.run(discard(target))
		if err != nil {
			return nil, err
		}
		if err := l.settled(ctx); err != nil {
			return nil, err
		}
		for _, writers := range crowd {
			for _, table := range []string{"plain", "tracked", "naive"} {
				if err := note(table, "active", writers); err != nil {
					return nil, err
				}
				if err := l.settled(ctx); err != nil {
					return nil, err
				}
			}
		}
		slow := []string{"ALTER SYSTEM SET commit_delay = 1500", "ALTER SYSTEM SET commit_siblings = 0", "SELECT pg_reload_conf()"}
		if err := l.adminExec(ctx, slow...); err != nil {
			return nil, err
		}
		for _, table := range []string{"tracked", "naive"} {
			if err := note(table, "slow", 16); err != nil {
				return nil, err
			}
		}
		if err := l.adminExec(ctx, "ALTER SYSTEM RESET commit_delay", "ALTER SYSTEM RESET commit_siblings", "SELECT pg_reload_conf()"); err != nil {
			return nil, err
		}
		if err := l.settled(ctx); err != nil {
			return nil, err
		}
		if err := p.stop(); err != nil {
			return nil, err
		}
	}
	return writerFigures(rates), nil
}

func writerFigures(rates map[string][]float64) []Figure {
	of := func(table, state string, writers int) []float64 {
		return rates[fmt.Sprintf("%s %s %d", table, state, writers)]
	}
	figure := func(what, table, state, against string, writers int) Figure {
		return Figure{
			Bench: "writers", What: fmt.Sprintf("%s, %d writers", what, writers), Unit: "commits/s", Values: of(table, state, writers),
			Against: against, Limits: of(map[string]string{"untracked": "plain", "outbox-only trigger": "sole", "naive NOTIFY": "naive"}[against], state, writers),
		}
	}
	return []Figure{
		figure("tracked, run active", "tracked", "active", "untracked", 1).atLeast(.75, "≥ 0.75"),
		figure("tracked, run active", "tracked", "active", "untracked", 16).atLeast(.65, "≥ 0.65"),
		figure("tracked, run active", "tracked", "active", "untracked", 64).atLeast(.65, "≥ 0.65"),
		figure("tracked, run stopped", "tracked", "stopped", "outbox-only trigger", 1).atLeast(.97, "≥ 0.97"),
		figure("tracked, run stopped", "tracked", "stopped", "outbox-only trigger", 16).atLeast(.97, "≥ 0.97"),
		figure("tracked, run stopped", "tracked", "stopped", "outbox-only trigger", 64).atLeast(.97, "≥ 0.97"),
		figure("outbox-only trigger", "sole", "stopped", "untracked", 1),
		figure("outbox-only trigger", "sole", "stopped", "untracked", 16),
		figure("outbox-only trigger", "sole", "stopped", "untracked", 64),
		figure("tracked, run active", "tracked", "active", "naive NOTIFY", 16).atLeast(2.5, "≥ 2.5"),
		figure("tracked, run active", "tracked", "active", "naive NOTIFY", 64).atLeast(2.5, "more than at 16"),
		figure("tracked, run active, commit_delay 1.5 ms", "tracked", "slow", "naive NOTIFY", 16).atLeast(10, "≥ 10"),
	}
}
