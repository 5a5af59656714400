package database

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// Server tells one server and database from others. A promoted standby is the same system on a later timeline; what an old
// primary commits after that is known to nobody else.
type Server struct {
	System   int64
	Timeline int64
	Database uint32
	Addr     string // where it was reached
}

func (s Server) String() string {
	return fmt.Sprintf("system %d, timeline %d, database oid %d", s.System, s.Timeline, s.Database)
}

// serverSQL is for sessions that may write. The timeline that is written is in the name of the current WAL file.
const serverSQL = `SELECT c.system_identifier, ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::bigint, d.oid
FROM pg_catalog.pg_control_system() AS c, pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database()`

// askServer returns where a session is.
func askServer(ctx context.Context, conn *pgconn.PgConn) (Server, error) {
	results, err := conn.Exec(ctx, serverSQL).ReadAll()
	if err != nil {
		return Server{}, fmt.Errorf("read which server this is: %w", err)
	}
	row := results[0].Rows[0]
	return parseServer(string(row[0]), string(row[1]), string(row[2]), conn.Conn().RemoteAddr().String())
}

func parseServer(system, timeline, database, addr string) (s Server, err error) {
	var failed [3]error
	s.System, failed[0] = strconv.ParseInt(system, 10, 64)
	s.Timeline, failed[1] = strconv.ParseInt(timeline, 10, 64)
	oid, err := strconv.ParseUint(database, 10, 32)
	s.Database, s.Addr, failed[2] = uint32(oid), addr, err
	if err := errors.Join(failed[:]...); err != nil {
		return Server{}, fmt.Errorf("read which server this is: %w", err)
	}
	return s, nil
}

// OldServerError says that a server was refused that does not know of a failover that this process has seen.
type OldServerError struct{ Server, Known Server }

func (e *OldServerError) Error() string {
	return fmt.Sprintf("the server at %s is an old primary and is not used: it is on timeline %d, and timeline %d of the same system was seen at %s; stop it, or make it a standby of that one",
		e.Server.Addr, e.Server.Timeline, e.Known.Timeline, e.Known.Addr)
}

// OtherServerError says that a server or database was refused that is not the one that this process works with.
type OtherServerError struct{ Server, Known Server }

func (e *OtherServerError) Error() string {
	return fmt.Sprintf("the session at %s is in another database (%s) than this process works with (%s at %s): let database_url and direct_url lead to one database; after a move to another server, restart the process",
		e.Server.Addr, e.Server, e.Known, e.Known.Addr)
}

// refusal returns the reason for which a server was refused, or nil.
func refusal(err error) error {
	if old, ok := errors.AsType[*OldServerError](err); ok {
		return old
	}
	if other, ok := errors.AsType[*OtherServerError](err); ok {
		return other
	}
	return nil
}
