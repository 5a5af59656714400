package e2e_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// spans has types whose text depends on settings that a pooler does not pass on.
const spans = `
CREATE TABLE spans (id int PRIMARY KEY, span interval, raw bytea, at timestamptz, ratio float8);
SELECT reconciler.track('span', 'spans', '{id}', $$'eu'$$);
INSERT INTO spans VALUES (1, '1 day 02:03:04', '\xff', '2026-01-02 03:04:05+00', 0.1::float8 + 0.2)`

const spanOne = `{"at": "2026-01-02T03:04:05+00:00", "id": 1, "raw": "\\xff", "span": "P1DT2H3M4S", "ratio": 0.30000000000000004}` + "\n"

// C10, C21: rows are read and results written through a pooler, and the rest goes past it: notifications arrive.
func TestWorkGoesThroughAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	r := chance(t)
	w := newWorld(t)
	w.exec(fleet + ";" + versions + ";" + spans)
	w.exec(`INSERT INTO apps (id, region) SELECT i, 'eu' FROM generate_series(1, 200) AS i`)
	pooled := w.db.Pooler(t, "").URL
	w.configure([]object{w.fileTarget("eu")}, object{"database_url": pooled, "direct_url": w.db.URL})
	d := w.start()
	w.wait()
	require.Equal(t, spanOne, files(t, w.path("eu"))["span/1.json"])
	d.listens()

	// The writer's own transactions go through the pooler too.
	conn, err := pgx.Connect(t.Context(), pooled+"&default_query_exec_mode=exec")
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `UPDATE apps SET version = nextval('versions') WHERE id <= 20; DELETE FROM spans`)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	writers := w.write(r, load{writers: 2, every: 10 * time.Millisecond, objects: 200, regions: []string{"eu"}})
	pass(time.Second, t.Context().Done())
	writers.stop()
	w.converges("eu")
	w.exec(`INSERT INTO spans VALUES (1, '1 day 02:03:04', '\xff', '2026-01-02 03:04:05+00', 0.1::float8 + 0.2)`)
	w.wait()
	require.Equal(t, spanOne, files(t, w.path("eu"))["span/1.json"])

	// What commands read on direct_url is the same, to the last byte.
	var differences []object
	require.Equal(t, 0, w.json(&differences, "diff").code, differences)
	d.stop()
	d.failedNothing()
}

// C10, C21: who leads everything through the pooler is told so, and gets their changes all the same: LISTEN is found
// not to work, and the outbox is polled.
func TestListenThroughAPoolerIsFoundNotToWork(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{
		"Strict":  "",
		"Lenient": "ignore_startup_parameters = options,search_path,IntervalStyle,bytea_output,extra_float_digits,lc_monetary,lc_numeric,lc_time,quote_all_identifiers,xmlbinary,row_security,client_min_messages,standard_conforming_strings,transform_null_equals,array_nulls,xmloption,check_function_bodies,default_transaction_isolation,default_transaction_read_only,default_transaction_deferrable,synchronous_commit,statement_timeout,lock_timeout,idle_in_transaction_session_timeout,idle_session_timeout,jit,plan_cache_mode,enable_indexscan,enable_nestloop,enable_sort,enable_seqscan,enable_bitmapscan",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.exec(fleet)
			pooler := w.db.Pooler(t, settings)
			w.configure([]object{w.fileTarget("eu")}, object{"database_url": pooler.URL})
			d := w.start("--poll-interval", "50ms")
			d.awaits("direct_url_pooled", "remedy", "let direct_url lead to the server itself")
			d.awaits("listen_lost", "error", "LISTEN does not work here: a notification that this process sent did not come back (is direct_url a pooler?); changes are found by polling")
			require.Equal(t, 0.0, d.metric("reconciler_listening"))
			for i := range 5 {
				w.exec(`INSERT INTO apps (id, region) VALUES ($1, 'eu')`, i)
				w.has("eu", w.rows()["eu"])
			}
			w.wait()

			// Changes of the time when the pooler is away are found by polling, too.
			written := make(chan error, 1)
			go func() {
				_, err := w.db.Pool.Exec(t.Context(), `UPDATE apps SET version = version + 1`)
				written <- err
			}()
			pooler.Restart(t, 100*time.Millisecond)
			require.NoError(t, <-written)
			w.converges("eu")
			require.Equal(t, 0.0, d.metric("reconciler_listening"))

			// Commands work and are obeyed; only what needs a session of its own is refused.
			w.ok("pause", "eu")
			w.held(0)
			w.exec(`DELETE FROM apps`)
			require.Equal(t, 1, w.cli("wait").code)
			w.ok("resume", "eu")
			w.wait()
			require.Empty(t, files(t, w.path("eu")))
			require.Equal(t, result{code: 3, stderr: "reconciler: direct_url leads through a pooler in transaction mode, which cannot keep a lock\n" +
				"hint: let direct_url (RECONCILER_DIRECT_URL) lead to the server itself\n"}, w.cli("migrate", "up"))
			require.Equal(t, []check{{Finding: "what is notified through database_url is not heard on direct_url within 3s",
				Remedy: "direct_url must lead to the server itself, without a pooler in between, and to the same database as database_url"}}, w.wrong(w.config))
			d.stop()
		})
	}
}
