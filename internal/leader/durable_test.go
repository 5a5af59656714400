package leader

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// What a process was told of is never lost again, though the database commits asynchronously: neither the revision, nor the
// change that it stands for.
func TestF10_RevisionThatWasToldOfOutlivesACrash(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t)
	b := bedOn(t, server.New(t))
	// Nobody else writes the log meanwhile.
	b.exec(`ALTER SYSTEM SET wal_writer_delay = '10s'`)
	b.exec(`ALTER SYSTEM SET wal_writer_flush_after = '1GB'`)
	b.exec(`ALTER SYSTEM SET autovacuum = off`)
	b.exec(`SELECT pg_reload_conf()`)
	b.exec(`ALTER DATABASE ` + b.db.Name + ` SET synchronous_commit = off`)
	b.listen()
	stop := b.lead()
	r := b.read()
	writer := b.db.Conn(t)
	var commits string
	require.NoError(t, writer.QueryRow(t.Context(), `SELECT current_setting('synchronous_commit')`).Scan(&commits))
	require.Equal(t, "off", commits)
	for _, id := range []string{"a", "b", "c"} {
		_, err := writer.Exec(t.Context(), `INSERT INTO apps (id) VALUES ($1)`, id)
		require.NoError(t, err)
	}
	r.gets("c")
	told, _ := b.feed.Latest()
	server.StopImmediate(t)
	_ = stop() // it has lost its connection
	server.Start(t)
	b.db.Pool.Reset()
	b.eventually("the server answers", func() bool { return b.db.Pool.Ping(t.Context()) == nil })
	require.Equal(t, "a, b, c", b.text(`SELECT string_agg(id, ', ' ORDER BY id) FROM apps`))
	require.Equal(t, told.Snapshot, b.text(`SELECT snapshot::text FROM reconciler.ticks WHERE revision = $1`, told.Revision))
}
