package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// walRoom keeps what a standby has yet to fetch while it is stopped or detached.
const walRoom = "1GB"

// Standby starts a hot standby that streams from c, of the same version and by the same means. It is gone after the test.
//
//	primary := pgtest.Server(t)
//	db := primary.New(t)
//	standby := primary.Standby(t)
//	url := pgtest.URLs(db.Name, primary, standby) // "host1:port1,host2:port2"
//
//	standby.AwaitReplay(t, primary)    // it has everything that was committed until now
//	standby.Detach(t)                  // optional: what is committed on c from now on is lost by the promotion
//	primary.StopImmediate(t)           // optional: both may take writes at once
//	standby.Promote(t)                 // takes writes, on a timeline of its own
//	primary.Start(t)                   // the old primary comes back and takes writes, on its old timeline
func (c *Cluster) Standby(t testing.TB) *Cluster {
	t.Helper()
	// A client that reaches the server may stream from it, as it may connect.
	c.exec(t, `COPY (SELECT 'host replication all all trust') TO PROGRAM 'cat >> pg_hba.conf'`,
		fmt.Sprintf("ALTER SYSTEM SET wal_keep_size = '%s'", walRoom),
		`SELECT pg_reload_conf()`)
	return own(t, "standby_", c.instance.follow)
}

// AwaitReplay returns when a standby shows everything that was committed on its primary until now.
func (c *Cluster) AwaitReplay(t testing.TB, primary *Cluster) {
	t.Helper()
	there := primary.ask(t, "SELECT pg_current_wal_lsn()::text")
	c.await(t, fmt.Sprintf("pg_last_wal_replay_lsn() >= '%s'::pg_lsn", there))
}

// Detach has a standby receive nothing any more: its promotion loses what is committed on the primary from now on.
func (c *Cluster) Detach(t testing.TB) {
	t.Helper()
	c.exec(t, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
	c.await(t, "NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// Promote makes a standby a primary, on a timeline of its own, and returns when it takes writes.
func (c *Cluster) Promote(t testing.TB) {
	t.Helper()
	c.exec(t, fmt.Sprintf("SELECT pg_promote(true, %d)", int(pgserver.StartTimeout/time.Second)))
	c.await(t, "NOT pg_is_in_recovery()")
}

// Timeline returns the number of the timeline that a primary writes.
func (c *Cluster) Timeline(t testing.TB) int {
	t.Helper()
	text := c.ask(t, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")
	line, err := strconv.ParseInt(text, 16, 64)
	if err != nil {
		t.Fatalf("timeline %q: %v", text, err)
	}
	return int(line)
}

// Same returns the database of a primary as this server has it: its standby, which may have been promoted.
func (c *Cluster) Same(t testing.TB, db *DB) *DB {
	t.Helper()
	same := &DB{Name: db.Name, URL: c.URL(db.Name), Version: c.Version(), server: c.instance}
	same.Pool = pool(t, same.URL)
	return same
}

// Addr returns host and port.
func (c *Cluster) Addr() string { return fmt.Sprintf("127.0.0.1:%d", c.instance.Port) }

// URLs returns the superuser's URL of a database that names several servers, in this order.
func URLs(database string, servers ...*Cluster) string {
	hosts := make([]string, len(servers))
	for n, server := range servers {
		hosts[n] = server.Addr()
	}
	return strings.Replace(servers[0].URL(database), hosts[0], strings.Join(hosts, ","), 1)
}

// exec runs statements as superuser.
func (c *Cluster) exec(t testing.TB, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), pgserver.StartTimeout)
	defer cancel()
	if err := c.instance.admin(ctx, "postgres", statements...); err != nil {
		t.Fatalf("%v\n%s", err, c.instance.log(t))
	}
}

// ask returns the one value of a query.
func (c *Cluster) ask(t testing.TB, query string) (value string) {
	t.Helper()
	if err := connect(t, c.URL("postgres")).QueryRow(t.Context(), query).Scan(&value); err != nil {
		t.Fatalf("%s: %v\n%s", query, err, c.instance.log(t))
	}
	return value
}

// await returns when a condition is true.
func (c *Cluster) await(t testing.TB, condition string) {
	t.Helper()
	conn := connect(t, c.URL("postgres"))
	err := Poll(t.Context(), pgserver.StartTimeout, func() (err error) {
		var is bool
		if err = conn.QueryRow(t.Context(), "SELECT "+condition).Scan(&is); err == nil && !is {
			err = errors.New("it is false")
		}
		return err
	})
	if err != nil {
		t.Fatalf("wait until %s: %v\n%s", condition, err, c.instance.log(t))
	}
}
