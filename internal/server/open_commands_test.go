package server_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/server/servertest"
)

// openCommands call what people may call, for three targets at once where they name one. start_over() is not among them: its
// subject is everything.
var openCommands = map[string]string{
	"pause":           `SELECT reconciler.pause(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"resume":          `SELECT reconciler.resume(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"approve":         `SELECT reconciler.approve(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"acknowledge":     `SELECT reconciler.acknowledge(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"retry":           `SELECT reconciler.retry(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"resync":          `SELECT reconciler.resync(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"release":         `SELECT reconciler.release(t, 'delete') FROM unnest('{a,b,c}'::text[]) AS t`,
	"track":           `SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(id)')`,
	"untrack":         `SELECT reconciler.untrack('app', 'delete')`,
	"regenerate":      `SELECT reconciler.regenerate('app')`,
	"set_notify":      `SELECT reconciler.set_notify(false)`,
	"set_applies":     `SELECT reconciler.set_applies('app', true)`,
	"begin_apply":     `SELECT reconciler.begin_apply('one'); UPDATE apps SET image = 'v2'`,
	"begin_resync":    `SELECT reconciler.begin_resync('app')`,
	"apply_pause":     `SELECT reconciler.apply_pause(1)`,
	"apply_stop":      `SELECT reconciler.apply_stop(1)`,
	"apply_start":     `SELECT reconciler.apply_stop(1); SELECT reconciler.apply_start(1)`,
	"apply_release":   `SELECT reconciler.apply_release(1)`,
	"apply_cancel":    `SELECT reconciler.apply_cancel(1)`,
	"apply_retry":     `SELECT reconciler.apply_retry(1)`,
	"wait":            `SELECT reconciler.wait('0', t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"ask_health":      `SELECT reconciler.ask_health(t) FROM unnest('{a,b,c}'::text[]) AS t`,
	"wait_healthy":    `SELECT * FROM reconciler.wait_healthy('0', 'a')`,
	"wait_for_health": `SELECT * FROM reconciler.wait_for_health('0', 'a', NULL)`,
	"wait_for":        `SELECT reconciler.wait_for('0', 'a')`,
	"apply_wait":      `SELECT reconciler.apply_wait(1, '0')`,
}

// F78, F24, F22: a person's transaction that called whatever, and stays open, stops no more than what it is about: changes of
// others flow, rollouts open, and no lease is lost for it, also when many stay open at once.
func TestOpenCommandsStopNobodyElse(t *testing.T) {
	t.Parallel()
	w := servertest.Holding(t)
	w.DB.Exec(t, `CREATE TABLE apps (id int PRIMARY KEY, region text NOT NULL, image text NOT NULL DEFAULT 'v1');
		INSERT INTO apps SELECT i, (ARRAY['a', 'b', 'c'])[i % 3 + 1] FROM generate_series(1, 150) AS i; SELECT reconciler.track('app', 'apps', '{id}', 'region', spec => 'to_jsonb(image)');
		CREATE TABLE others (id int PRIMARY KEY, n int NOT NULL); INSERT INTO others VALUES (1, 0); SELECT reconciler.track('other', 'others', '{id}', '''free''', spec => 'to_jsonb(n)')`)
	require.Equal(t, w.Text(`SELECT string_agg(f, ' ' ORDER BY f COLLATE "C") FROM (SELECT DISTINCT substring(object FROM '^reconciler\.([a-z_]+)') AS f FROM reconciler.rights('operator') WHERE class = 'FUNCTION'
		EXCEPT SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'reconciler'::regnamespace AND p.provolatile <> 'v'
		UNION VALUES ('track'), ('untrack'), ('regenerate'), ('set_notify'), ('set_applies')) AS f`), strings.Join(slices.Sorted(maps.Keys(openCommands)), " "), "what people may call is tried here")
	free := servertest.NewPlace()
	w.Start(servertest.Named("a", servertest.NewPlace(), servertest.Quick), servertest.Named("b", servertest.NewPlace(), servertest.Quick), servertest.Named("c", servertest.NewPlace(), servertest.Quick), servertest.Named("free", free))
	w.Wait()
	w.DB.Exec(t, `SELECT reconciler.pause('a'); SELECT reconciler.ask_health('a', '1 hour')`)
	apply(w, `'one that waits'`, `UPDATE apps SET image = 'v0'`)
	w.Settled("running", `SELECT state FROM reconciler.applies`)
	const terms = `SELECT string_agg(concat(name, term), ' ' ORDER BY name) FROM (SELECT name, term FROM reconciler.targets UNION ALL SELECT name, term FROM reconciler.leases) AS l`
	before, n := w.Text(terms), 0
	flows := func(what string) {
		t.Helper()
		n++
		// A newer apply supersedes the waiting one for an object. It cannot be opened while a person holds the waiting one.
		_, err := w.DB.Pool.Exec(t.Context(), fmt.Sprintf(`BEGIN; SET LOCAL lock_timeout = '100ms'; SELECT reconciler.begin_apply('taker'); UPDATE apps SET image = 'v%d' WHERE id = %d; COMMIT`, n, 3*n))
		if database.Code(err) != "55P03" { // the person's command is about the rows themselves
			require.NoError(t, err, what)
		}
		apply(w, `'others'`, `UPDATE others SET n = `+strconv.Itoa(n))
		free.Until(t, func(have map[string]string, _ []servertest.Call) bool { return have["other/1"] == strconv.Itoa(n) }, func() string { return "a change is applied beside " + what })
		w.Settled("0", `SELECT count(*)::text FROM reconciler.applies WHERE title = 'others' AND state <> 'completed'`)
	}
	open := func(name string) (pgx.Tx, error) {
		person := w.Begin()
		w.In(person, `SET LOCAL lock_timeout = '100ms'`)
		_, err := person.Exec(t.Context(), openCommands[name])
		return person, err
	}
	names := slices.Sorted(maps.Keys(openCommands))
	for _, name := range names {
		w.Eventually(name+" gets its locks", func() bool {
			person, err := open(name)
			if database.Code(err) != "55P03" {
				require.NoError(t, err, name)
				flows(name)
			}
			require.NoError(t, person.Rollback(t.Context()))
			return err == nil
		})
	}
	var left []pgx.Tx
	for _, name := range names {
		person, err := open(name)
		if database.Code(err) == "55P03" { // it is about what another one holds
			require.NoError(t, person.Rollback(t.Context()))
			continue
		}
		require.NoError(t, err, name)
		left = append(left, person)
	}
	const beats = `SELECT max(beat)::text FROM reconciler.heartbeats`
	begun := w.Text(beats)
	w.Eventually("heartbeats have passed", func() bool {
		return w.Text(`SELECT (max(beat) >= $1::bigint + 3)::text FROM reconciler.heartbeats`, begun) == "true"
	})
	flows("all of them")
	require.Equal(t, before, w.Text(terms), "leases were lost")
	require.Empty(t, w.Text(`SELECT coalesce(string_agg(concat_ws(' ', loop, target, error), '; '), '') FROM reconciler.failing_loops
		WHERE coalesce(target, '') NOT IN ('a', 'b', 'c') AND NOT (loop = 'acquire' AND error ~ '^take target [abc](, target [abc])*: the row is locked')`))
	for _, person := range left {
		require.NoError(t, person.Rollback(t.Context()))
	}
	w.DB.Exec(t, `SELECT reconciler.resume('a')`)
	w.Wait()
}
