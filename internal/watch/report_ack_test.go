package watch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// What waits for a report is looked at again when it has come, once for each report, and the owner is notified. Nothing else is.
func TestReportMakesDueWhatWaitsForIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a", "b", "gone")
	b.remove("gone")
	b.db.Exec(t, `UPDATE reconciler.streams SET ack = true`)
	b.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT $1, $2, key, 'pending', key <> 'gone', true, clock_timestamp() + interval '1 hour' FROM unnest('{a,b,gone}'::text[]) AS key`, b.target, b.resource)
	due := func() (keys string) {
		t.Helper()
		b.query(`WITH due AS (UPDATE reconciler.ledger SET next_attempt_at = clock_timestamp() + interval '1 hour'
			WHERE next_attempt_at <= clock_timestamp() RETURNING key || generation AS key) SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM due`, &keys)
		return keys
	}
	conn := b.db.Conn(t)
	_, err := conn.Exec(t.Context(), `LISTEN reconciler_control`)
	require.NoError(t, err)
	va, vb, head_ := b.version("a"), b.version("b"), b.version("gone")

	b.report(head("s", 1, false), seen("a", va, "applied"), end)
	require.Equal(t, "a1", due())
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	_, err = conn.WaitForNotification(ctx)
	require.NoError(t, err)
	b.report(head("s", 1, false), seen("a", va, "applied"), end)
	require.Equal(t, "a2", due(), "the process may have died before")

	b.report(head("s", 2, true), seen("a", va, "applied"), seen("b", vb, "progressing"), end)
	require.Equal(t, "a3 b1 gone1", due())
	b.report(head("s", 3, true), seen("a", va, "applied"), seen("b", vb, "progressing"), end)
	require.Empty(t, due(), "nothing has changed")
	b.report(head("s", 1, false), seen("a", va, "failed"), end)
	require.Empty(t, due(), "it is old")
	b.report(fmt.Sprintf(`{"session":"s","seq":4,"complete":true,"version":%d}`, head_), seen("a", va, "applied"), seen("b", vb, "progressing"), end)
	require.Equal(t, "a4 b2 gone2", due(), "deletes up to that version are confirmed")

	b.db.Exec(t, `UPDATE reconciler.streams SET ack = false`)
	b.report(head("s", 5, false), seen("b", vb, "applied"), end)
	require.Empty(t, due(), "nothing waits")
}

// A client that has lost its objects, or its last report, learns of every delete that is not confirmed, however it connects.
func TestUnacknowledgedDeletesAreSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, small(2, 1<<20))
	b.apply(`1`, "a", "b", "c", "d", "e", "stays", "wanted")
	b.remove("a", "b", "c", "d", "e", "wanted")
	b.db.Exec(t, `INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, next_attempt_at)
		SELECT $1, $2, key, 'pending', key = 'wanted', true, clock_timestamp() FROM unnest('{a,b,c,e,stays,wanted}'::text[]) AS key`, b.target, b.resource)
	b.complete()

	f := b.follow()
	require.Equal(t, []string{"stays=1", "keep wanted pending", "end_of_snapshot"}, f.until("end_of_snapshot"), "nothing is confirmed on this stream")
	f.close()

	b.db.Exec(t, `UPDATE reconciler.streams SET ack = true`)
	want := []string{"a=-", "b=-", "c=-", "e=-", "wanted=-"}
	require.Equal(t, append(append([]string{"stays=1", "keep wanted pending"}, want...), "end_of_snapshot"), b.follow("watch", "").rest())
	require.Equal(t, want, b.follow("watch", "", "since", f.bookmark).rest())
	require.Equal(t, []string{"a=-", "end_of_snapshot"}, b.follow("watch", "", "resource", "app", "prefix", "a").rest())

	b.report(head("s", 1, false), seen("a", b.version("a"), "absent"), end)
	b.db.Exec(t, `DELETE FROM reconciler.ledger WHERE key IN ('a', 'c')`) // as their owner does
	b.remove("stays")
	require.Equal(t, []string{"stays=-", "b=-", "e=-", "wanted=-"}, b.follow("watch", "", "since", f.bookmark).rest(), "a later delete comes once")
}
