package leader

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/outbox"
	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// Plans are kept. Those that were made while the outbox was empty, as each of its parts is again and again, and was known to
// be, serve it when it is full: they must walk its index. One that reads all of it for each tick makes ticks as slow as
// the outbox is long, until somebody analyzes it.
func TestPlansForAnEmptyOutboxServeAFullOne(t *testing.T) {
	t.Parallel()
	const ticks = 20
	rows := pgtest.Pick(2_000, 20_000)
	b := newBed(t)
	b.exec(`VACUUM ANALYZE`)
	b.listen()
	b.listens()
	stop := b.lead()
	conn := b.db.Conn(t)
	feed := outbox.NewFeed(conn, b.metrics) // one connection, which keeps its plans
	from, _ := b.feed.Latest()
	step := func(sql string, args ...any) {
		b.exec(sql, args...)
		b.eventually("there is a tick", func() bool { to, _ := b.feed.Latest(); return to.Revision > from.Revision })
		to, _ := b.feed.Latest()
		_, err := feed.Read(t.Context(), from, to, outbox.Position{})
		require.NoError(t, err)
		from = to
	}
	one := func() {
		step(`INSERT INTO apps (id) VALUES ('a') ON CONFLICT (id) DO UPDATE SET image = coalesce(apps.image, '') || 'x'`)
	}
	for range ticks {
		one()
	}
	step(`INSERT INTO apps (id) SELECT n::text FROM generate_series(1, $1::int) AS n`, rows)
	for range ticks {
		one()
	}
	require.NoError(t, stop())
	require.NoError(t, conn.Close(t.Context()))
	b.eventually("the sessions have told what they read", func() bool {
		return b.text(`SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ 'TickInsert|OutboxDelta|SleepLock'`) == "0"
	})
	scanned := b.text(`SELECT sum(seq_tup_read)::text FROM pg_stat_user_tables WHERE schemaname = 'reconciler' AND relname ~ '^outbox_'`)
	require.Equal(t, "0", scanned, "rows of the outbox that were read without its index")
}
