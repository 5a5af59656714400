package bench

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// ourConns is how many connections are needed beside the writers': those of a process (four pools, leader and
	// listener), of the measurement, and of the clean-up.
	ourConns = 20
	// spareConns are left to others while it is measured.
	spareConns = 5
)

// OnStandby reports whether a server that takes no write is one that replays another's. Package database does not
// connect to such a server, so it is asked on a connection without conditions.
func OnStandby(ctx context.Context, url string) bool {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return false // the error that led here says more
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var standby bool
	err = conn.QueryRow(ctx, "SELECT pg_catalog.pg_is_in_recovery()").Scan(&standby)
	return err == nil && standby
}

// StandbyRefusal is the Refusal of a server that is OnStandby.
func StandbyRefusal() *Refusal {
	return &Refusal{
		Text: "the server is a standby: nothing can be written, and so nothing measured, there",
		Hint: "let direct_url lead to the primary",
	}
}

// check refuses a server on which the measurement would fail half-way, or take what others need.
func check(ctx context.Context, admin *pgx.Conn, opts Options) error {
	var role, grant string
	var may bool
	var free int
	err := admin.QueryRow(ctx, `SELECT current_user::text, rolcreatedb OR rolsuper, format('ALTER ROLE %I CREATEDB;', current_user),
		current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
			- (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend')
		FROM pg_roles WHERE rolname = current_user`).Scan(&role, &may, &grant, &free)
	if err != nil {
		return fmt.Errorf("look whether the server can be measured: %w", err)
	}
	if !may {
		return &Refusal{
			Text: fmt.Sprintf("role %q may not create databases, and everything is measured in a scratch database", role),
			Hint: "as a superuser: " + grant + " (and NOCREATEDB afterwards), or give the URL of another role",
		}
	}
	if need := opts.Writers + ourConns; free < need+spareConns {
		return &Refusal{
			Text: fmt.Sprintf("%d writers need %d connections, and of the %d that are free on the server %d are left to others", opts.Writers, need, free, spareConns),
			Hint: "give fewer --writers, or raise max_connections",
		}
	}
	return nil
}
