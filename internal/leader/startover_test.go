package leader

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/database"
	"github.com/pgreconciler/reconciler/internal/outbox"
)

// impatient returns a session that waits for no lock for longer than a second.
func (b *bed) impatient() *pgx.Conn {
	b.t.Helper()
	conn := b.db.Conn(b.t)
	_, err := conn.Exec(b.t.Context(), `SET lock_timeout = '1s'`)
	require.NoError(b.t, err)
	return conn
}

// takeLead gives the lease back to the bed's leader.
func (b *bed) takeLead() {
	b.t.Helper()
	b.exec(`UPDATE reconciler.leases SET owner = $1, term = 1, lease_ttl = '1 hour'`, instance)
}

// I2, I8: starting over waits for nobody who looks at the outbox or has written to it, and nobody waits for it. What was
// committed before is not read again, what was in progress is read when it is committed.
func TestF23_StartOverStallsNobody(t *testing.T) {
	t.Parallel()
	for name, hinder := range map[string]func(*bed) (end func()){
		"APreparedTransactionThatWrote": func(b *bed) func() {
			b.exec(`SELECT reconciler.set_notify(false)`)
			tx := b.begin()
			b.in(tx, `INSERT INTO apps (id) VALUES ('late')`)
			b.in(tx, fmt.Sprintf(`PREPARE TRANSACTION '%s'`, b.db.Name))
			return func() { b.exec(fmt.Sprintf(`COMMIT PREPARED '%s'`, b.db.Name)) }
		},
		"AnOpenTransactionThatWrote": func(b *bed) func() {
			tx := b.begin()
			b.in(tx, `INSERT INTO apps (id) VALUES ('late')`)
			return func() { b.commit(tx) }
		},
		"ADumpThatIsBeingMade": func(b *bed) func() {
			tx := b.begin()
			b.in(tx, `LOCK TABLE reconciler.outbox, reconciler.ticks, reconciler.installation, reconciler.targets, reconciler.ledger IN ACCESS SHARE MODE`)
			return func() {
				b.commit(tx)
				b.change("late")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.listen(func(l *outbox.Listener) { l.Off = true })
			b.consumer("eu", b.latest())
			b.change("old")
			old := b.tick()
			end := hinder(b)

			starting, err := b.impatient().Begin(t.Context())
			require.NoError(t, err)
			b.in(starting, `SELECT reconciler.start_over('test')`)
			_, err = b.impatient().Exec(t.Context(), `INSERT INTO apps (id) VALUES ('meanwhile')`)
			require.NoError(t, err, "a writer waits for it")
			b.commit(starting)

			var first outbox.Tick
			require.NoError(t, b.db.Pool.QueryRow(t.Context(), `SELECT revision, snapshot::text FROM reconciler.ticks`).Scan(&first.Revision, &first.Snapshot))
			b.takeLead()
			b.lead()
			r := b.readFrom(first)
			floor, err := strconv.ParseInt(b.text(`SELECT floor_revision::text FROM reconciler.installation`), 10, 64)
			require.NoError(t, err)
			require.Greater(t, floor, old.Revision+900, "above what a leader made meanwhile")
			require.Equal(t, first.Revision, floor)
			require.Equal(t, "0", b.text(`SELECT count(*)::text FROM reconciler.cursors`))
			end()
			r.gets("late")
			r.gets("meanwhile")
			require.Len(t, r.got(), 2, "%v", r.got())
			require.NotEqual(t, "0", b.rows(), "they are left to retention")
		})
	}
}

// C15: the outbox of a dump may have ids that this server has not come to. Nobody reads them, nobody waits for them, and
// retention empties their parts.
func TestF23_RowsOfAnotherServerAreNobodys(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.listen(func(l *outbox.Listener) { l.Off = true })
	b.exec(`INSERT INTO reconciler.outbox (xid, resource_id, target, key) SELECT '9000000000000', id, 'eu', 'foreign' FROM reconciler.resources`)
	b.exec(`SELECT reconciler.start_over('test')`)
	b.takeLead()
	b.lead()
	r := b.read()
	b.consumer("eu", r.cursor())
	b.exec(`UPDATE reconciler.targets SET configured = true`)
	require.Empty(t, b.text(`SELECT string_agg(key, ',') FROM reconciler.pending`))
	b.change("new")
	r.gets("new")
	require.Equal(t, []string{"new"}, r.got())
	b.consumer("eu", r.cursor())
	b.eventually("every part is emptied", func() bool { // retention leaves a part alone while the leader or the consumer reads it
		b.retain(day, 1_000_000)
		return b.rows() == "0"
	})
}

// I12: an old primary knows less than a process that has seen its successor. That is no restored database.
func TestF88_OldPrimaryIsNotAdopted(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	const adopt = `SELECT reconciler.adopt(4000000000, system + $1, timeline + $2) FROM reconciler.this_server()`
	for _, seen := range [][2]int64{{0, 1}, {1, 0}, {1, -1}} {
		_, err := b.db.Pool.Exec(t.Context(), adopt, seen[0], seen[1])
		require.Equal(t, "RC002", database.Code(err), "%v", err)
	}
	require.Equal(t, "0", b.text(`SELECT epoch::text FROM reconciler.installation`))
	b.exec(adopt, 0, -1)
	require.Equal(t, "1", b.text(`SELECT epoch::text FROM reconciler.installation`), "files that were put back")
}
