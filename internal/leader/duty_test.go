package leader

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
)

// One duty of the leader that fails stops no other.
func TestDutiesFailAlone(t *testing.T) {
	t.Parallel()
	for what, broken := range map[string]struct {
		sql   string
		opens bool // applies, all the same
	}{
		"Retain":   {refuse("outbox_retained", "BEFORE UPDATE ON reconciler.installation"), true},
		"Forget":   {`DROP FUNCTION reconciler.forget_applies`, true},
		"Mend":     {`DROP FUNCTION reconciler.capture_problems CASCADE`, true},
		"Open":     {`DROP FUNCTION reconciler.open_applies`, false},
		"Count":    {`ALTER TABLE reconciler.applies RENAME COLUMN completed_at TO gone`, false},
		"Register": {refuse("no_targets", "BEFORE INSERT ON reconciler.targets"), true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.consumer("slow", outbox.Tick{Snapshot: "3:3:"}) // or retention drops what is marked
			b.exec(joinedApps)
			b.exec(broken.sql)
			b.listen()
			b.lead()
			b.works(1)
			b.upTo(b.latest())
			b.exec(`UPDATE teams SET name = 'first' WHERE id = 1`)
			b.eventually("changes of base tables are expanded", func() bool { return strings.Contains(b.marked(), "eu/a") })
			if broken.opens {
				b.exec(`SELECT reconciler.begin_apply('of nothing')`)
				b.opened(1)
			}
		})
	}
}

// refuse is SQL that makes writes fail.
func refuse(name, when string) string {
	return `CREATE FUNCTION public.` + name + `() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
		CREATE TRIGGER ` + name + ` ` + when + ` FOR EACH ROW EXECUTE FUNCTION public.` + name + `()`
}

// F16: a name that cannot be registered is no reason to stop.
func TestF16_LeaderSurvivesANameThatCannotBeRegistered(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.consumer("slow", outbox.Tick{Snapshot: "3:3:"})
	b.exec(joinedApps)
	b.listen()
	b.lead()
	b.works(1)
	b.upTo(b.latest())
	// Longer than what the index of names can hold, and not compressible.
	b.exec(`INSERT INTO reconciler.outbox (resource_id, target, key)
		SELECT r.id, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 400) AS i), 'long' FROM reconciler.resources r WHERE r.name = 'crew'`)
	b.exec(`INSERT INTO members VALUES ('x', 1, 'asia')`)
	b.eventually("other names are registered", func() bool { return b.text(`SELECT count(*)::text FROM reconciler.targets WHERE name = 'asia'`) == "1" })
	b.exec(`UPDATE teams SET name = 'first' WHERE id = 1`)
	b.eventually("changes of base tables are expanded", func() bool { return strings.Contains(b.marked(), "asia/x") })
	require.Equal(t, "0", b.text(`SELECT count(*)::text FROM reconciler.targets WHERE length(name) > 1000`))
}
