package apply_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// reported is a stream eu with an object 1 of version 7, and a client that has reported on it at a known time.
func reported(t *testing.T) psqlDB {
	t.Helper()
	db := newPsqlDB(t)
	db.ledger(t, "eu", "1", "applied", "")
	db.ledger(t, "us", "1", "applied", "")
	db.Exec(t, `
		UPDATE reconciler.targets SET driver = 'stream' WHERE name = 'eu';
		SELECT reconciler.own_stream(id, owner, term, '1 day', false) FROM reconciler.targets WHERE name = 'eu';
		UPDATE reconciler.streams SET complete = true;
		INSERT INTO reconciler.published (target_id, resource, key, version, revision, spec, hash, bytes)
		SELECT id, 'deployments', '1', 7, 9, '{}', '\x00112233445566778899aabbccddeeff', 2 FROM reconciler.targets WHERE name = 'eu'`)
	return db
}

// report takes one observation of object 1, and dates the report.
func (d psqlDB) report(t *testing.T, seq int, complete bool, state, message, healthy string) {
	t.Helper()
	d.Exec(t, `SELECT reconciler.report(id, 's', $1, $2, 0, '{deployments}', '{1}', '{7}', ARRAY[$3], ARRAY[$4], ARRAY[$5], '{""}') FROM reconciler.targets WHERE name = 'eu'`,
		seq, complete, state, message, healthy)
	d.Exec(t, `UPDATE reconciler.reports SET reported_at = '2026-01-02 05:00:00+00', inventory_at = '2026-01-02 05:00:00+00' WHERE inventory_at IS NOT NULL`)
	d.Exec(t, `UPDATE reconciler.reports SET reported_at = '2026-01-02 05:00:00+00'`)
	d.Exec(t, `UPDATE reconciler.observations SET observed_at = '2026-01-02 04:00:00+00'`)
}

func TestPsqlShowsWhatClientsReport(t *testing.T) {
	t.Parallel()
	db := reported(t)
	objects := `SELECT target, observed_version, observed_state, healthy, observed_at, observed_message FROM reconciler.objects ORDER BY target`
	reports := `SELECT * FROM reconciler.stream_reports`
	require.Equal(t, []string{"eu |  |  |  |  | ", "us |  |  |  |  | "}, db.lines(t, objects))
	require.Equal(t, "eu |  | 0 |  |  | 0 | 0 | 0", db.line(t, reports))
	require.Len(t, db.explain(t, "eu", "deployments", "1"), 4, "nothing was reported")

	db.report(t, 1, false, "failed", "no image", "false")
	require.Equal(t, []string{"eu | 7 | failed | f | 2026-01-02 04:00:00+00 | no image", "us |  |  |  |  | "}, db.lines(t, objects))
	require.Equal(t, "eu | s | 1 | 2026-01-02 05:00:00+00 |  | 1 | 1 | 1", db.line(t, reports))
	require.Equal(t, "Observed: the client reported version 7 failed at 2026-01-02 04:00:00+00, not healthy: no image.", db.explain(t, "eu", "deployments", "1")[3])
	require.Equal(t, "the client reports 1 object failed, such as '1' of deployments: no image", db.line(t, `SELECT trouble FROM reconciler.status WHERE target = 'eu'`))
	require.Equal(t, []string{"eu: the client reports 1 object failed, such as '1' of deployments: no image | " +
		"Mend what the messages name; SELECT * FROM reconciler.objects WHERE target = 'eu' AND observed_state = 'failed'; lists them"},
		db.lines(t, `SELECT finding, remedy FROM reconciler.doctor() WHERE check_name = 'streams'`))
	db.Exec(t, `UPDATE reconciler.targets SET trouble = 'reload failed'`)
	require.Equal(t, "reload failed", db.line(t, `SELECT trouble FROM reconciler.status WHERE target = 'eu'`), "what the target itself has comes first")

	db.report(t, 2, true, "applied", "", "true")
	require.Equal(t, "eu | 7 | applied | t | 2026-01-02 05:00:00+00 | ", db.lines(t, objects)[0], "the complete report is the newest that named it")
	require.Equal(t, "eu | s | 2 | 2026-01-02 05:00:00+00 | 2026-01-02 05:00:00+00 | 1 | 0 | 0", db.line(t, reports))
	db.Exec(t, `UPDATE reconciler.published SET version = 8`)
	require.Equal(t, "Observed: the client reported version 7 applied at 2026-01-02 05:00:00+00, healthy. The newest is version 8.", db.explain(t, "eu", "deployments", "1")[3])
	db.Exec(t, `UPDATE reconciler.published SET version = 9, spec = NULL, hash = NULL, bytes = 0`)
	require.Equal(t, "Observed: the client reported version 7 applied at 2026-01-02 05:00:00+00, healthy. The newest is version 9, which deletes it.",
		db.explain(t, "eu", "deployments", "1")[3])
	require.Equal(t, "Observed: the client has not reported it; its last report came at 2026-01-02 05:00:00+00.", db.explain(t, "eu", "deployments", "2")[3])
	require.Equal(t, "1 stream complete", db.line(t, `SELECT finding FROM reconciler.doctor() WHERE check_name = 'streams'`))
}

// A client that has stopped reporting shows, where objects wait for it.
func TestPsqlNamesAClientThatDoesNotReport(t *testing.T) {
	t.Parallel()
	db := reported(t)
	const findings = `SELECT finding FROM reconciler.doctor() WHERE check_name = 'streams'`
	db.Exec(t, `UPDATE reconciler.streams SET ack = true; UPDATE reconciler.published SET at = '2026-01-02 03:00:00+00'`)
	require.Equal(t, []string{"1 stream complete"}, db.lines(t, findings), "nothing is pending")
	db.Exec(t, `UPDATE reconciler.ledger SET state = 'pending', next_attempt_at = clock_timestamp() + interval '10 minutes'
		WHERE key = '1' AND target_id = (SELECT id FROM reconciler.targets WHERE name = 'eu')`)
	require.Equal(t, []string{"eu: 1 object waits for a report of the client, the first since 2026-01-02 03:00:00+00; none has ever come"}, db.lines(t, findings))
	db.report(t, 1, false, "progressing", "", "")
	require.Equal(t, []string{"eu: 1 object waits for a report of the client, the first since 2026-01-02 03:00:00+00; the last one came at 2026-01-02 05:00:00+00"}, db.lines(t, findings))
	db.Exec(t, `UPDATE reconciler.published SET at = clock_timestamp()`)
	require.Equal(t, []string{"1 stream complete"}, db.lines(t, findings), "it was published just now")
}
