package leader

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/desired"
	"github.com/pgreconciler/reconciler/internal/outbox"
)

const joinedApps = `CREATE TABLE teams (id int PRIMARY KEY, name text);
CREATE TABLE members (id text PRIMARY KEY, team_id int NOT NULL, region text);
CREATE VIEW crew AS SELECT m.id, m.team_id, m.region, t.name AS team FROM members m JOIN teams t ON t.id = m.team_id;
INSERT INTO teams VALUES (1, 'one'), (2, 'two');
INSERT INTO members VALUES ('a', 1, 'eu'), ('b', 1, 'us'), ('c', 2, 'eu');
SELECT reconciler.track('crew', 'crew', '{id}', 'region', depends_on => '{"teams": {"id": "team_id"}, "members": {"id": "id"}}');`

func (b *bed) steward(change ...func(*Steward)) *Steward {
	s := &Steward{
		Pool: b.db.Pool, Instance: instance, Feed: b.feed, Catalog: &desired.Catalog{}, MaxAge: time.Hour, MaxRows: 1_000_000,
		Logger: b.log, Metrics: b.metrics,
	}
	if b.listener != nil {
		s.Wake = b.listener.Wake
	}
	for _, fn := range change {
		fn(s)
	}
	return s
}

// works starts a steward.
func (b *bed) works(term int64) (stop func() error) {
	s := b.steward()
	return b.background(func(ctx context.Context) error { return s.Run(ctx, term, nil) })
}

// keeps says where the steward's cursor stands.
func (b *bed) keeps() string {
	b.t.Helper()
	return b.text(`SELECT revision::text FROM reconciler.cursor_of(0)`)
}

// covered reports whether every outbox row belongs to a revision.
func (b *bed) covered() bool {
	b.t.Helper()
	return b.text(`SELECT (reconciler.covering_revision(pg_current_snapshot()) IS NOT NULL)::text`) == "true"
}

// upTo waits until the steward has read everything.
func (b *bed) upTo(tick outbox.Tick) {
	b.t.Helper()
	b.eventually("the steward has read everything", func() bool {
		return b.text(`SELECT (revision >= $1)::text FROM reconciler.cursor_of(0)`, tick.Revision) == "true"
	})
}

// marked returns the objects of resource crew that were marked by the steward.
func (b *bed) marked() string {
	b.t.Helper()
	return b.text(`SELECT string_agg(DISTINCT coalesce(o.target, '*') || '/' || coalesce(o.key, '*'), ' ' ORDER BY coalesce(o.target, '*') || '/' || coalesce(o.key, '*'))
		FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id WHERE r.name = 'crew' AND o.dependency_id IS NULL`)
}

// C12: a change of a base table reaches every object that depends on it, also those whose row is gone; a sleeping leader
// is called for what the steward writes.
func TestChangedBaseTableReachesItsObjects(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(joinedApps)
	b.listen()
	b.lead()
	b.works(1)
	r := b.read()
	b.reach("the leader sleeps", b.asleep)
	b.exec(`INSERT INTO reconciler.targets (name) VALUES ('mars')`)
	b.exec(`INSERT INTO reconciler.ledger (target_id, resource_id, key, state, wanted, present, applied_hash, match)
		SELECT t.id, r.id, 'gone', 'applied', true, true, substr(sha256('x'), 1, 16), '{"id": "gone", "team_id": 1}'
		FROM reconciler.resources r, reconciler.targets t WHERE r.name = 'crew' AND t.name = 'mars'`)
	// What the steward writes about the new resource would stand among the marks.
	b.upTo(b.latest())
	b.eventually("everything has a revision", b.covered)
	called := 0
	for _, change := range []struct{ sql, marks string }{
		{`UPDATE teams SET name = 'first' WHERE id = 1`, "eu/a mars/gone us/b"},
		{`UPDATE members SET team_id = 2 WHERE id = 'b'`, "us/b"},
		{`DELETE FROM teams WHERE id = 2`, ""}, // no running row is left, and the ledger knows none
		{`INSERT INTO teams VALUES (2, 'two again')`, "eu/c us/b"},
	} {
		b.exec(`TRUNCATE reconciler.outbox`)
		polls := b.polls()
		b.exec(change.sql)
		if change.marks != "" {
			b.eventually(change.sql, func() bool { return b.marked() == change.marks })
			last := change.marks[strings.LastIndex(change.marks, "/")+1:]
			b.eventually("the leader reads what the steward wrote", func() bool { return slices.Contains(r.got(), last) })
			if polls == b.polls() {
				called++
			}
		}
		b.upTo(b.latest())
		b.eventually("everything has a revision", b.covered)
		require.Equal(t, change.marks, b.marked())
		r.clear()
	}
	require.Positive(t, called, "the leader found each of them by itself") // one or the other it may, on a busy machine
}

// What rows name and no config has becomes visible, once; a name that was released becomes visible again when a row
// names it.
func TestUnknownTargetsBecomeVisible(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`INSERT INTO apps (id, region) VALUES ('before', 'mars')`)
	b.listen()
	b.lead()
	b.works(1)
	targets := func() string { return b.text(`SELECT string_agg(name, ' ' ORDER BY name) FROM reconciler.targets`) }
	b.eventually("a target that rows named before", func() bool { return targets() == "mars" })
	b.exec(`INSERT INTO apps (id, region) VALUES ('new', 'venus'), ('again', 'mars'), ('off', 'pluto')`)
	b.eventually("targets that rows name now", func() bool { return targets() == "mars pluto venus" })
	require.Equal(t, "3", b.text(`SELECT max(id)::text FROM reconciler.targets`), "no id was used up for those that were there")
	require.Equal(t, "false", b.text(`SELECT bool_or(configured)::text FROM reconciler.targets`))
}

// A leader that dies before it has kept its first cursor leaves changes of base tables that no target's first sync has
// seen, if a target had begun by then. Nobody knows which: joined resources are looked at as a whole.
func TestFirstLeaderDiesBeforeItsCursorIsKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begun, changed bool
		marks          string
	}{
		"AChangeIsLeft":        {true, true, "*/*"},
		"NothingHasChanged":    {true, false, ""},
		"NoTargetHasBegunThen": {false, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.exec(joinedApps)
			b.exec(`TRUNCATE reconciler.outbox; UPDATE reconciler.installation SET rotated_at = clock_timestamp()`)
			b.listen(func(l *outbox.Listener) { l.Off = true })
			b.lead()
			if c.begun {
				b.exec(`WITH t AS (INSERT INTO reconciler.targets (name) VALUES ('eu') RETURNING id) INSERT INTO reconciler.cursors (consumer, revision, snapshot) SELECT t.id, k.revision, k.snapshot FROM t, reconciler.ticks k ORDER BY k.revision DESC LIMIT 1`)
			}
			if c.changed {
				b.exec(`UPDATE teams SET name = 'first' WHERE id = 1`)
			}
			b.eventually("it has a revision", b.covered)
			stop := b.works(1)
			b.upTo(b.latest())
			require.NoError(t, stop())
			require.Equal(t, c.marks, b.marked())

			b.exec(`TRUNCATE reconciler.outbox`)
			b.works(1) // which knows its cursor
			b.exec(`UPDATE teams SET name = 'second' WHERE id = 2`)
			b.eventually("objects are marked", func() bool { return b.marked() == "eu/c" })
		})
	}
}

// A steward that is killed inside a batch expands it again: objects are marked twice, none is missed.
func TestBatchIsExpandedAgainAfterACrash(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(joinedApps)
	b.exec(`UPDATE reconciler.installation SET rotated_at = clock_timestamp()`) // retention takes nothing meanwhile
	b.listen(func(l *outbox.Listener) { l.Off = true })
	b.lead()
	stop := b.works(1)
	b.upTo(b.latest())
	require.NoError(t, stop())
	cursor := b.text(`SELECT revision || ' ' || snapshot FROM reconciler.cursor_of(0)`)
	b.exec(`UPDATE teams SET name = 'first' WHERE id = 1`)
	b.eventually("it has a revision", b.covered)

	stop = b.works(1)
	b.eventually("objects are marked", func() bool { return b.marked() == "*/* eu/a us/b" })
	b.upTo(b.latest())
	require.NoError(t, stop())
	rows := b.text(`SELECT count(*)::text FROM reconciler.outbox`)

	b.exec(`SELECT reconciler.write_cursor(0, split_part($1, ' ', 1)::bigint, split_part($1, ' ', 2)::pg_snapshot)`, cursor)
	b.works(1)
	b.upTo(b.latest())
	b.eventually("objects are marked again", func() bool { return b.text(`SELECT count(*)::text FROM reconciler.outbox`) > rows })
	require.Equal(t, "*/* eu/a us/b", b.marked())
}

// Below the floor nobody knows which base tables changed: every joined resource is looked at as a whole.
func TestStewardBelowTheFloorHasJoinedResourcesSynced(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(joinedApps)
	b.listen(func(l *outbox.Listener) { l.Off = true })
	stopLeader := b.lead()
	stop := b.works(1)
	b.upTo(b.latest())
	require.NoError(t, stop())
	b.exec(`UPDATE teams SET name = 'first' WHERE id = 1`)
	b.change("a")
	b.eventually("they have a revision", b.covered)
	require.NoError(t, stopLeader())
	b.exec(`UPDATE reconciler.installation SET floor_revision = (SELECT max(revision) FROM reconciler.ticks)`)
	b.exec(`TRUNCATE reconciler.outbox`)
	b.unprimed()
	b.lead()
	b.works(1)
	b.eventually("crew is marked as a whole", func() bool { return b.marked() == "*/*" })
	b.upTo(b.latest())
	require.Equal(t, "0", b.text(`SELECT count(*)::text FROM reconciler.outbox o JOIN reconciler.resources r ON r.id = o.resource_id WHERE r.name = 'app' AND key IS NULL`))
}

// I10: a deposed steward writes nothing.
func TestDeposedStewardIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.consumer("slow", outbox.Tick{Snapshot: "3:3:"}) // or retention, which comes after the cursor, drops what is marked
	b.exec(joinedApps)
	b.listen(func(l *outbox.Listener) { l.Off = true })
	b.lead()
	s := b.steward()
	ended := make(chan error, 1)
	b.background(func(ctx context.Context) error {
		err := s.Run(ctx, 1, nil)
		ended <- err
		return err
	})
	b.upTo(b.latest())
	cursor, marked := b.keeps(), b.marked()
	b.exec(`UPDATE teams SET name = 'first' WHERE id = 1; UPDATE reconciler.leases SET term = 2`)
	// The tick is made by hand: the leader is deposed too.
	b.exec(`INSERT INTO reconciler.ticks (revision, snapshot) SELECT max(revision) + 1, pg_current_snapshot() FROM reconciler.ticks`)
	b.latest()
	select {
	case err := <-ended:
		require.True(t, database.IsFenced(err), "%v", err)
	case <-time.After(within):
		require.FailNow(t, "the deposed steward goes on")
	}
	require.Equal(t, cursor, b.keeps())
	require.Equal(t, marked, b.marked())
}

// Capture code that somebody dropped is generated again.
func TestStewardMendsCapture(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`ALTER TABLE apps DISABLE TRIGGER ALL`)
	b.listen()
	b.lead()
	b.works(1)
	b.eventually("triggers are enabled again", func() bool { return b.text(`SELECT count(*)::text FROM reconciler.capture_problems()`) == "0" })
	r := b.read()
	b.change("a")
	r.gets("a")
}
