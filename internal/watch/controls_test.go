package watch_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// controlled reads frames up to the next one with controls, and returns these.
func (f *follower) controlled() string {
	f.b.t.Helper()
	for {
		line, err := f.lines.ReadBytes('\n')
		require.NoError(f.b.t, err)
		var next struct {
			Type, Bookmark string
			Controls       json.RawMessage
		}
		require.NoError(f.b.t, json.Unmarshal(line, &next))
		if next.Bookmark != "" {
			f.bookmark = next.Bookmark
		}
		if next.Controls != nil {
			return next.Type + " " + string(next.Controls)
		}
	}
}

// A command reaches an idle watcher in a checkpoint at once, and one that was away when it comes back.
func TestControlsReachWatchers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	f := b.follow()
	require.Equal(t, "end_of_snapshot {}", f.controlled())
	for _, step := range []struct{ sql, want string }{
		{`SELECT reconciler.pause('eu')`, `{"paused":true}`},
		{`SELECT reconciler.resync('*')`, `{"paused":true,"resync":1}`},
		{`SELECT reconciler.retry('eu'), reconciler.approve('eu')`, `{"paused":true,"resync":1,"retry":1,"approve":1}`},
		{`SELECT reconciler.resume('eu')`, `{"resync":1,"retry":1,"approve":1}`},
		{`UPDATE reconciler.targets SET paused_at = clock_timestamp(), paused_by = 'ann'`, `{"paused":true,"resync":1,"retry":1,"approve":1}`},
	} {
		b.db.Exec(t, step.sql)
		b.hub.Wake()
		require.Equal(t, "checkpoint "+step.want, f.controlled(), step.sql)
	}
	f.close()
	b.db.Exec(t, `SELECT reconciler.resync('eu'), reconciler.resume('eu')`)
	require.Equal(t, `checkpoint {"resync":2,"retry":1,"approve":1}`, b.follow("since", f.bookmark).controlled())
	require.Equal(t, `end_of_snapshot {"resync":2,"retry":1,"approve":1}`, b.follow("watch", "").controlled())
	b.db.Exec(t, `SELECT reconciler.release('eu', 'delete')`)
	require.Equal(t, `checkpoint {"resync":3,"retry":1,"approve":1}`, b.follow("watch", "", "since", f.bookmark).controlled(), "releasing is a resync, too")
}

// Watchers at the same place share a checkpoint only while the controls are the same.
func TestControlsOfAStreamAreItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.complete()
	b.db.Exec(t, `INSERT INTO reconciler.targets (name, configured, driver) VALUES ('us', true, 'stream'), ('files', true, 'file')`)
	b.db.Exec(t, `SELECT reconciler.retry(name), reconciler.resync(name), reconciler.approve(name), reconciler.pause(name) FROM reconciler.targets WHERE name <> 'eu'`)
	var rows int
	b.query(`SELECT count(*) FROM reconciler.stream_controls`, &rows)
	require.Zero(t, rows, "they have no stream")
	require.Equal(t, "end_of_snapshot {}", b.follow("watch", "").controlled())
}

// What the hub has read may be older than what a watcher has read itself. Numbers that go back would look like a restore, and a command
// would be obeyed twice.
func TestControlsDoNotGoBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	first := b.follow()
	require.Equal(t, "end_of_snapshot {}", first.controlled())
	b.halt()
	b.db.Exec(t, `SELECT reconciler.pause('eu'), reconciler.retry('eu')`)
	require.Equal(t, `checkpoint {"paused":true,"retry":1}`, b.follow("since", first.bookmark).controlled())
}

// A command in a transaction that stays open holds up neither the owner, nor housekeeping, nor reports.
func TestOpenCommandHoldsUpNoStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	f := b.follow()
	require.Equal(t, "end_of_snapshot {}", f.controlled())
	person, err := b.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = person.Rollback(context.Background()) }()
	_, err = person.Exec(t.Context(), `SELECT reconciler.resync('*')`)
	require.NoError(t, err)
	b.db.Exec(t, `SET lock_timeout = '100ms'; SELECT reconciler.own_stream(id, owner, term, '1 hour', true), reconciler.complete_stream(id, owner, term) FROM reconciler.targets;
		SELECT reconciler.forget_tombstones(10); SELECT reconciler.report(id, 's', 1, false, 0, '{}', '{}', '{}', '{}', '{}', '{}', '{}') FROM reconciler.targets; RESET lock_timeout`)
	require.NoError(t, person.Commit(t.Context()))
	require.Equal(t, `checkpoint {"resync":1}`, f.controlled())
}

// After a restore the controls are those of the backup.
func TestControlsAfterARestore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(`1`, "a")
	b.complete()
	b.db.Exec(t, `SELECT reconciler.retry('eu'), reconciler.retry('eu')`)
	f := b.follow()
	require.Equal(t, `end_of_snapshot {"retry":2}`, f.controlled())
	b.db.Exec(t, `UPDATE reconciler.stream_controls SET retries = 1; UPDATE reconciler.streams SET epoch = gen_random_uuid()`)
	b.hub.Wake()
	require.Equal(t, `end_of_snapshot {"retry":1}`, f.controlled())
}
