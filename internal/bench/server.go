package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Server says where figures come from: what decides how long a commit takes, and what the run wrote.
type Server struct {
	PostgreSQL        string `json:"postgresql"`
	Fsync             bool   `json:"fsync"`
	SynchronousCommit string `json:"synchronous_commit"`
	SyncStandbys      bool   `json:"synchronous_standbys"` // commits may wait for a standby
	Prepared          bool   `json:"prepared_transactions"`
	WALMiB            int    `json:"wal_mib"`      // written by the whole server meanwhile
	DatabaseMiB       int    `json:"database_mib"` // size of the scratch database at the end

	start string // of the WAL
}

// lookAround reads the settings as they are for the user's database.
func lookAround(ctx context.Context, admin *pgx.Conn) (*Server, error) {
	s := &Server{}
	err := admin.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync')::bool, current_setting('synchronous_commit'),
		current_setting('synchronous_standby_names') <> '', current_setting('max_prepared_transactions')::int > 0, pg_current_wal_insert_lsn()::text`).
		Scan(&s.PostgreSQL, &s.Fsync, &s.SynchronousCommit, &s.SyncStandbys, &s.Prepared, &s.start)
	if err != nil {
		return nil, fmt.Errorf("read the server's settings: %w", err)
	}
	return s, nil
}

// count notes what was written.
func (s *Server) count(ctx context.Context, admin *pgx.Conn, name string) error {
	const mib = 1 << 20
	err := admin.QueryRow(ctx, `SELECT round(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), $1::pg_lsn) / $3)::int, (pg_database_size($2) / $3)::int`, s.start, name, mib).
		Scan(&s.WALMiB, &s.DatabaseMiB)
	if err != nil {
		return fmt.Errorf("count what was written: %w", err)
	}
	return nil
}
