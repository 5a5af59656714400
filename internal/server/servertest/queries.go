package servertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/config"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// WaitFor waits until one target has everything.
func (w *World) WaitFor(target string) {
	w.T.Helper()
	require.Empty(w.T, w.Column(`SELECT concat_ws(' ', target, reason) FROM reconciler.wait($1, $2)`, Deadline, target))
}

// Begin opens a transaction that is rolled back at the end of the test if nothing else becomes of it.
func (w *World) Begin() pgx.Tx {
	w.T.Helper()
	tx, err := w.DB.Conn(w.T).Begin(context.Background())
	require.NoError(w.T, err)
	return tx
}

// Unsettled keeps the results of calls from the ledger, as long as its transaction is open.
const Unsettled = `LOCK TABLE reconciler.ledger IN SHARE MODE`

// In runs SQL in a transaction.
func (w *World) In(tx pgx.Tx, sql string) {
	w.T.Helper()
	_, err := tx.Exec(context.Background(), sql)
	require.NoError(w.T, err)
}

// Commit commits a transaction.
func (w *World) Commit(tx pgx.Tx) {
	w.T.Helper()
	require.NoError(w.T, tx.Commit(context.Background()))
}

// Seen waits until every committed change has been read and settled, or waits in the ledger, for a target.
func (w *World) Seen(target string) {
	w.T.Helper()
	w.Eventually("the cursor of "+target+" covers everything", func() bool {
		return w.Text(`SELECT (c.revision >= reconciler.covering_revision(pg_current_snapshot()))::text FROM reconciler.target_cursors c WHERE c.target = $1`, target) == "true"
	})
}

// Beats waits until the only process has acted on n more heartbeats.
func (w *World) Beats(n int) {
	w.T.Helper()
	const newest = `SELECT max(beat)::text FROM reconciler.heartbeats`
	for range n {
		before := w.Text(newest)
		w.DB.Exec(w.T, Control)
		w.Eventually("a heartbeat", func() bool { return w.Text(newest) != before })
	}
}

// Quick is for targets that are taken over: the first sync waits until the last call of the former owner must have ended.
func Quick(c *config.Target) { c.Timeout = 500 * time.Millisecond }

// Column returns the values of a query that has one text column.
func (w *World) Column(sql string, args ...any) (values []string) {
	w.T.Helper()
	rows, err := w.DB.Pool.Query(context.Background(), sql, args...)
	require.NoError(w.T, err)
	defer rows.Close()
	for rows.Next() {
		var value string
		require.NoError(w.T, rows.Scan(&value))
		values = append(values, value)
	}
	require.NoError(w.T, rows.Err())
	return values
}

// Lines returns the rows of a query that has one text column.
func (w *World) Lines(query string, args ...any) []string {
	w.T.Helper()
	var lines []string
	require.NoError(w.T, w.DB.Pool.QueryRow(w.T.Context(), `SELECT coalesce(array_agg(x.line ORDER BY x.line), '{}') FROM (`+query+`) AS x(line)`, args...).Scan(&lines))
	return lines
}

// Control is SQL that has processes look at once what has changed.
const Control = `SELECT pg_notify('reconciler_control', '')`

var listening = regexp.MustCompile(`key=listen address=(\S+)`)

// Ready asks the probe of the process that was started last.
func (w *World) Ready() string {
	w.T.Helper()
	lines := w.Logged("msg=listening")
	if len(lines) == 0 {
		return ""
	}
	resp, err := http.Get("http://" + listening.FindStringSubmatch(lines[len(lines)-1])[1] + "/readyz")
	require.NoError(w.T, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(w.T, err)
	return fmt.Sprintf("%d %s", resp.StatusCode, strings.TrimSpace(string(body)))
}

// Silently runs SQL with capture switched off, as a restore or a replica does.
func (w *World) Silently(sql string) {
	w.T.Helper()
	w.silent = w.silent || len(w.Places) > 0 // before the first server, there is nothing to miss
	conn := w.DB.Conn(w.T)
	for _, one := range []string{"SET session_replication_role = replica", sql} {
		_, err := conn.Exec(context.Background(), one)
		require.NoError(w.T, err)
	}
}

// Text returns the one value of a query; "" for NULL and for no row.
func (w *World) Text(sql string, args ...any) string {
	w.T.Helper()
	var text *string
	err := w.DB.Pool.QueryRow(context.Background(), sql, args...).Scan(&text)
	if !errors.Is(err, pgx.ErrNoRows) {
		require.NoError(w.T, err)
	}
	if text == nil {
		return ""
	}
	return *text
}

// Settled waits until a query gives a text.
func (w *World) Settled(want, sql string, args ...any) {
	w.T.Helper()
	require.NoError(w.T, pgtest.Poll(context.Background(), Deadline, func() error {
		if have := w.Text(sql, args...); have != want {
			return fmt.Errorf("%s\nwant %s\nhave %s", sql, want, have)
		}
		return nil
	}))
}

// Resync asks for a full sync and waits for its end.
func (w *World) Resync(want string) {
	w.T.Helper()
	w.DB.Exec(w.T, `SELECT reconciler.resync('eu')`)
	w.Settled(want, LastSync)
}

// LastSync is SQL that describes the newest run of a sync.
const LastSync = `SELECT state || ' ' || reason || ' rows=' || rows || ' upserts=' || upserts || ' tombstones=' || tombstones || ' drifted=' || drifted || ' held=' || held
FROM reconciler.sync_runs ORDER BY id DESC LIMIT 1`
