package watch_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
)

// forget has the leader's housekeeping forget tombstones that are older than the history.
func (b *bed) forget() {
	b.t.Helper()
	b.db.Exec(b.t, `UPDATE reconciler.published SET at = '2000-01-01' WHERE spec IS NULL`)
	for more := true; more; {
		b.query(`SELECT reconciler.forget_tombstones(2)`, &more)
	}
}

// What was observed of an object goes with its tombstone, its resource or its stream, and never with what another one has.
func TestObservationsGoWithTheirObjects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b", "c", "d", "e")
	lines := []string{head("s", 1, true)}
	b.remove("a", "b", "c")
	for _, key := range strings.Fields("a b c d e") {
		lines = append(lines, seen(key, b.version(key), map[bool]string{true: "absent", false: "applied"}[key < "d"]))
	}
	b.report(append(lines, end)...)
	require.Equal(t, 5, strings.Count(b.observed(), " v"))
	b.forget()
	left := fmt.Sprintf("d v%d applied, e v%d applied", b.version("d"), b.version("e"))
	require.Equal(t, left, b.observed())
	require.JSONEq(t, `{"accepted":0,"ignored":1}`, b.report(head("s", 2, false), seen("a", 1, "applied"), end), "an object without a tombstone is not known")

	b.db.Exec(t, `CREATE TABLE dns (id text PRIMARY KEY)`)
	b.db.Exec(t, `SELECT reconciler.track(resource => 'dns', relation => 'dns', key => '{id}', target => $$'eu'$$, running => 'true')`)
	b.applyOf("dns", `1`, "x")
	x := fmt.Sprintf(`{"resource":"dns","key":"x","version":%d,"state":"applied"}`, b.version("x"))
	b.report(head("s", 3, false), x, end)
	require.Equal(t, left+fmt.Sprintf(", x v%d applied", b.version("x")), b.observed())
	b.db.Exec(t, `SELECT reconciler.untrack('dns')`)
	b.forget()
	require.Equal(t, left, b.observed(), "of a resource that is gone")
	require.JSONEq(t, `{"accepted":0,"ignored":1}`, b.report(head("s", 4, false), x, end), "it is still published, so the client may name it")

	b.db.Exec(t, `DELETE FROM reconciler.streams`)
	require.Empty(t, b.observed())
	status, text := b.post(observations, body(head("s", 5, false), end))
	require.Equal(t, 404, status, text)
	var rows int
	b.query(`SELECT count(*) FROM reconciler.reports`, &rows)
	require.Zero(t, rows)
}

// An object that comes back while its tombstone is forgotten keeps what is observed of it.
func TestForgettingLeavesObjectsThatCameBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.report(head("s", 1, false), seen("a", b.version("a"), "applied"), end)
	b.db.Exec(t, `SELECT reconciler.forget_observations($1, '{app}', '{a}', 10)`, b.target)
	require.NotEmpty(t, b.observed())
}

// Reports of two processes on one target, with opposite orders, beside housekeeping and the publisher, never deadlock and never
// leave an observation of an object that is not published.
func TestReportsBesideEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := strings.Fields("a b c d e f g h")
	b.apply(`0`, keys...)
	versions := map[string]int64{}
	for _, key := range keys {
		versions[key] = b.version(key)
	}
	other := b.serve(config.Streams{})
	var clients sync.WaitGroup
	for n, server := range []string{b.server.URL, other.URL} {
		clients.Go(func() {
			for seq := 1; seq <= 40; seq++ {
				lines := []string{head(fmt.Sprint(n), seq, seq%3 == 0)}
				for i := range keys {
					key := keys[i]
					if n == 1 {
						key = keys[len(keys)-1-i]
					}
					lines = append(lines, seen(key, versions[key], "applied"))
				}
				status, text := postTo(t, server+observations, body(append(lines, end)...))
				if status != 200 {
					t.Errorf("%d %s", status, text)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var house sync.WaitGroup
	house.Go(func() {
		for ctx.Err() == nil {
			b.forget()
		}
	})
	for i := range 20 {
		b.remove(keys[i%len(keys)])
		if i%3 == 0 {
			b.apply(fmt.Sprint(i), keys[i%len(keys)])
		}
	}
	clients.Wait()
	cancel()
	house.Wait()
	b.forget()
	var orphans int
	b.query(`SELECT count(*) FROM reconciler.observations o WHERE NOT EXISTS (SELECT FROM reconciler.published p WHERE p.target_id = o.target_id AND p.key = o.key)`, &orphans)
	require.Zero(t, orphans)
}

// begin takes a report in a transaction that is left open, and returns what commits it.
func (b *bed) begin(session, key, state string) (commit func()) {
	b.t.Helper()
	tx, err := b.db.Pool.Begin(b.t.Context())
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(b.t.Context(), `SELECT reconciler.report($1, $2, 1, false, 0, '{app}', ARRAY[$3], ARRAY[$4::bigint], ARRAY[$5], '{""}', '{""}', '{""}')`,
		b.target, session, key, b.version(key), state)
	require.NoError(b.t, err)
	return func() { require.NoError(b.t, tx.Commit(b.t.Context())) }
}

// waits runs a statement, and returns when it waits for a lock, with what waits for its end.
func (b *bed) waits(sql string, args ...any) (end func()) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	pid := conn.PgConn().PID()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(b.t.Context(), sql, args...)
		ended <- err
	}()
	require.Eventually(b.t, func() bool {
		var blocked bool
		b.query(`SELECT cardinality(pg_blocking_pids($1)) > 0`, &blocked, pid)
		return blocked
	}, deadline, 10*time.Millisecond, sql)
	return func() { require.NoError(b.t, <-ended) }
}

// A report that is being written holds up what ends the stream, and leaves nothing behind.
func TestStreamEndsAfterAReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	commit := b.begin("s", "a", "applied")
	end := b.waits(`DELETE FROM reconciler.streams`)
	commit()
	end()
	require.Empty(t, b.observed())
}

// A tombstone that is forgotten while a report on it is being written takes the observation along.
func TestTombstoneIsForgottenAfterAReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.remove("a")
	b.db.Exec(t, `UPDATE reconciler.published SET at = '2000-01-01'`)
	commit := b.begin("s", "a", "absent")
	end := b.waits(`SELECT reconciler.forget_tombstones(10)`)
	commit()
	end()
	require.Empty(t, b.observed())
}

// Two sessions that begin at the same time are two: the one that waited is the newer.
func TestReportsOfTwoSessionsFollowEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	commit := b.begin("one", "a", "applied")
	end := b.waits(`SELECT reconciler.report($1, 'two', 1, false, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}')`, b.target)
	commit()
	end()
	var text string
	b.query(`SELECT session || session_id || replaced::text FROM reconciler.reports`, &text)
	require.Equal(t, "two2{one}", text)
}
