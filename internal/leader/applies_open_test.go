package leader

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Applies are opened several at a time. One that cannot be opened fails by itself, and the others do not know.
func TestOneOfManyAppliesCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	for range 5 {
		b.exec(`SELECT reconciler.begin_apply('of nothing')`)
	}
	b.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$`)
	b.exec(`CREATE TRIGGER refuse BEFORE UPDATE ON reconciler.applies FOR EACH ROW WHEN (new.id = 3 AND new.state = 'completed') EXECUTE FUNCTION public.refuse()`)
	b.lead()
	b.works(1)
	b.eventually("all are open", func() bool { return b.text(`SELECT count(*) FROM reconciler.applies WHERE opened_at IS NULL`) == "0" })
	require.Equal(t, "completed completed failed completed completed", b.text(`SELECT string_agg(state, ' ' ORDER BY id) FROM reconciler.applies`))
	require.Contains(t, b.text(`SELECT error_message FROM reconciler.applies WHERE id = 3`), "it could not be opened, and its changes are applied as if there was none: ERROR: not this one")
}

// One that somebody holds keeps no other from being open, and no change behind it from being expanded. Those after it may have
// changed its objects: these are theirs.
func TestOneOfManyAppliesIsHeld(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for range 4 {
		b.exec(`SELECT reconciler.begin_apply('of nothing')`)
	}
	b.listen()
	b.lead()
	open := func() string {
		return b.text(`SELECT string_agg(id::text, ' ' ORDER BY id) FROM reconciler.applies WHERE opened_at IS NOT NULL`)
	}
	tx := b.begin()
	b.in(tx, `SELECT FROM reconciler.applies WHERE id = 3 FOR NO KEY UPDATE`)
	b.works(1)
	b.eventually("the others are open", func() bool { return open() == "1 2 4" })
	b.exec(`SELECT reconciler.begin_apply('of nothing')`)
	b.eventually("a later one, too", func() bool { return open() == "1 2 4 5" })
	b.commit(tx)
	b.eventually("it is open, too", func() bool { return open() == "1 2 3 4 5" })
}

// How long the leader's row is held is bounded by time, too; there is always one that is opened.
func TestAppliesAreOpenedForAWhile(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen()
	b.lead()
	for range 3 {
		b.exec(`SELECT reconciler.begin_apply('of nothing')`)
	}
	some := func(ids, patience string) string {
		return b.text(`SELECT reconciler.open_applies($1, 1, $2::bigint[], 1, 1000, $3::interval)::text`, instance, ids, patience)
	}
	require.Equal(t, "0", some("{}", "1 hour"))
	require.Equal(t, "1", some("{1,2,3}", "0"))
	require.Equal(t, "2", some("{2,3}", "1 hour"))
	require.Equal(t, "3", some("{1,2,3}", "1 hour"), "what is open is open")
}

// An operator forgets a target while the leader opens an apply that names it. The apply opens without that target.
func TestTargetThatIsForgottenWhileAnApplyIsOpened(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`CREATE TABLE sites (id int PRIMARY KEY, place text NOT NULL)`)
	b.exec(`SELECT reconciler.track('site', 'sites', '{id}', 'place')`)
	b.exec(`INSERT INTO reconciler.targets (name) VALUES ('gone')`)
	b.exec(`UPDATE reconciler.installation SET rotated_at = '-infinity'`)       // retention empties what it may
	b.exec(`ALTER FUNCTION reconciler.open_applies SET lock_timeout = '10min'`) // it waits until the person has committed
	b.exec(`BEGIN; SELECT reconciler.begin_apply('of a site'); INSERT INTO sites VALUES (1, 'gone'); COMMIT`)
	person := b.begin()
	b.in(person, `SELECT reconciler.release('gone')`)
	b.listen()
	b.lead()
	b.works(1)
	b.eventually("the leader waits for the person", func() bool {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%open_applies%'`) == "1"
	})
	b.commit(person)
	b.opened(1)
	require.Equal(t, "completed 0", b.text(`SELECT concat_ws(' ', state, error_message, (SELECT count(*) FROM reconciler.operations)) FROM reconciler.applies`))
}
