package main

import (
	"context"
	"fmt"
	"time"

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
		CREATE FUNCTION sole() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.sole_outbox (resource_id, target, key) VALUES (1, 'sink', NEW.id::text); RETURN NULL; END $$;
		CREATE TRIGGER sole AFTER UPDATE ON sole FOR EACH ROW EXECUTE FUNCTION sole()`,
		`CREATE TABLE naive_outbox (id bigserial PRIMARY KEY, key text, at timestamptz DEFAULT now());
		CREATE FUNCTION naive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO naive_outbox (key) VALUES (NEW.id::text); PERFORM pg_notify('naive', ''); RETURN NULL; END $$;
		CREATE TRIGGER naive AFTER UPDATE ON naive FOR EACH ROW EXECUTE FUNCTION naive()`,
		`VACUUM ANALYZE`)
}

// readNaive is the consumer of the naive design: it wakes up and takes what is there. It ends with ctx.
func (l *lab) readNaive(ctx context.Context) (wait func()) {
	conn := must(pgx.Connect(ctx, l.url))
	must(conn.Exec(ctx, "LISTEN naive"))
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
	return func() { <-done }
}

// benchWriters measures what tracking costs those who write, while the product runs and while it does not.
func benchWriters(ctx context.Context, l *lab) []Figure {
	l.fresh(ctx, writtenSchema()...)
	naiveCtx, endNaive := context.WithCancel(ctx)
	defer endNaive()
	waitNaive := l.readNaive(naiveCtx)
	defer func() { endNaive(); waitNaive() }()
	rates := map[string][]float64{} // by table, product and number of writers
	// A round goes over the tables by turns of a second: a disk that is fast and slow by turns is so for all of them.
	compare := func(state string, writers int, tables ...string) {
		turns := max(1, int(l.length/time.Second))
		sums := make([]float64, len(tables))
		for range turns {
			for i, table := range tables {
				rate, _ := l.commits(ctx, table, writers, l.length/time.Duration(turns))
				sums[i] += rate
				if state != stateStopped {
					l.settled(ctx)
				}
			}
		}
		for i, table := range tables {
			name := fmt.Sprintf("%s %s %d", table, state, writers)
			rates[name] = append(rates[name], sums[i]/float64(turns))
		}
	}
	for range l.rounds {
		l.compareWriters(ctx, compare)
	}
	return writerFigures(rates)
}

// What the product does while writers are compared.
const (
	stateStopped = "stopped"
	stateActive  = "active"
	stateSlow    = "slow" // active, and each commit takes 1.5 ms longer
)

// compareWriters is one round.
func (l *lab) compareWriters(ctx context.Context, compare func(state string, writers int, tables ...string)) {
	crowd := []int{1, 16, 64}
	for _, writers := range crowd {
		compare(stateStopped, writers, "plain", "sole", "tracked")
	}
	p := l.run(discard(target))
	l.settled(ctx)
	for _, writers := range crowd {
		compare(stateActive, writers, "plain", "tracked", "naive")
	}
	defer func() {
		check(l.adminExec(ctx, "ALTER SYSTEM RESET commit_delay", "ALTER SYSTEM RESET commit_siblings", "SELECT pg_reload_conf()"))
	}()
	check(l.adminExec(ctx, "ALTER SYSTEM SET commit_delay = 1500", "ALTER SYSTEM SET commit_siblings = 0", "SELECT pg_reload_conf()"))
	compare(stateSlow, 16, "tracked", "naive")
	p.stop()
}

// commits returns how many commits a second writers make, and how long each took.
func (l *lab) commits(ctx context.Context, table string, writers int, length time.Duration) (rate float64, times []time.Duration) {
	rate, times, err := measure.Commits(ctx, measure.Load{Pool: l.pool, Table: table, Rows: writtenRows, Writers: writers, Length: length})
	check(err)
	return rate, times
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
		figure("tracked, run active", "tracked", stateActive, "untracked", 1).atLeast(.75, "≥ 0.75"),
		figure("tracked, run active", "tracked", stateActive, "untracked", 16).atLeast(.65, "≥ 0.65"),
		figure("tracked, run active", "tracked", stateActive, "untracked", 64).atLeast(.65, "≥ 0.65"),
		figure("tracked, run stopped", "tracked", stateStopped, "outbox-only trigger", 1).atLeast(.97, "≥ 0.97"),
		figure("tracked, run stopped", "tracked", stateStopped, "outbox-only trigger", 16).atLeast(.97, "≥ 0.97"),
		figure("tracked, run stopped", "tracked", stateStopped, "outbox-only trigger", 64).atLeast(.97, "≥ 0.97"),
		figure("outbox-only trigger", "sole", stateStopped, "untracked", 1),
		figure("outbox-only trigger", "sole", stateStopped, "untracked", 16),
		figure("outbox-only trigger", "sole", stateStopped, "untracked", 64),
		figure("tracked, run active", "tracked", stateActive, "naive NOTIFY", 16).atLeast(2.5, "≥ 2.5"),
		figure("tracked, run active", "tracked", stateActive, "naive NOTIFY", 64).atLeast(2.5, "more than at 16"),
		figure("tracked, run active, commit_delay 1.5 ms", "tracked", stateSlow, "naive NOTIFY", 16).atLeast(10, "≥ 10"),
	}
}
