package database

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errPooler says that a session that was taken for one of the server's belongs to a pooler.
var errPooler = errors.New("the connection leads through a pooler")

// Pooled says whether connections of this config know that they lead through a pooler.
func Pooled(cfg *pgx.ConnConfig) bool { return cfg.DefaultQueryExecMode == pgx.QueryExecModeExec }

// validateSession refuses a server that is read-only, and a pooler: that makes up the process number that a session
// begins with, for it has none yet. Prepared statements would fail there, or not, depending on who else is at work.
func validateSession(ctx context.Context, conn *pgconn.PgConn) error {
	if err := pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn); err != nil {
		return err
	}
	pid, err := backendPID(ctx, conn)
	if err != nil {
		return err
	}
	if pid != uint64(conn.PID()) {
		return errPooler
	}
	return nil
}

func backendPID(ctx context.Context, conn *pgconn.PgConn) (uint64, error) {
	results, err := conn.Exec(ctx, "SELECT pg_catalog.pg_backend_pid()").ReadAll()
	if err != nil {
		return 0, fmt.Errorf("read the number of the server process: %w", err)
	}
	return strconv.ParseUint(string(results[0].Rows[0][0]), 10, 32)
}

// isPooler reports whether connecting failed because a pooler is in the way: one that was found, or one that refuses
// settings which it does not keep (PgBouncer without ignore_startup_parameters).
func isPooler(err error) bool {
	if errors.Is(err, errPooler) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "08P01" && strings.Contains(pgErr.Message, "startup parameter")
}

// poolerLooks is how often SharesSessions looks. What others do through the pooler decides which session it lends.
const poolerLooks = 20

// SharesSessions says for certain that connections of this config have no session of their own, as with a pooler in
// transaction mode: two have the same one, or one changes it. It may miss a pooler whose sessions are all busy.
func SharesSessions(ctx context.Context, cfg *pgx.ConnConfig) (bool, error) {
	var conns [2]*pgx.Conn
	for i := range conns {
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err != nil {
			return false, connectError(cfg, err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		conns[i] = conn
	}
	owner := map[uint64]int{} // of each session seen
	for look := range len(conns) * poolerLooks {
		i := look % len(conns)
		pid, err := backendPID(ctx, conns[i].PgConn())
		if err != nil {
			return false, err
		}
		if other, seen := owner[pid]; seen && other != i {
			return true, nil
		}
		owner[pid] = i
	}
	return len(owner) > len(conns), nil
}
