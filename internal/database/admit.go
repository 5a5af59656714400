package database

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// refusedAgain is when the log names a refused server again.
const refusedAgain = time.Minute

// wrongServer is the SQLSTATE of reconciler.expect_server, and of adopt.
const wrongServer = "RC002"

var errFailedOver = errors.New("the server was left for one on a later timeline")

// Known returns the server that all connections of the process lead to; its zero value before the first one.
func (f *Fleet) Known() Server {
	if f == nil {
		return Server{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known
}

// admitting returns a validation that also asks which server a session is on, and refuses it if need be: pgx then tries the
// next host of the URL.
func (f *Fleet) admitting(validate pgconn.ValidateConnectFunc) pgconn.ValidateConnectFunc {
	if f == nil {
		return validate
	}
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := validate(ctx, conn); err != nil {
			return err
		}
		server, err := askServer(ctx, conn)
		if err != nil {
			return err
		}
		if s := socketOf(conn); s != nil {
			s.timeline.Store(server.Timeline)
		}
		return f.judge(server)
	}
}

func socketOf(conn *pgconn.PgConn) *socket {
	under := conn.Conn()
	if secured, ok := under.(*tls.Conn); ok {
		under = secured.NetConn()
	}
	s, _ := under.(*socket)
	return s
}

// judge learns of a server that a session is on. The first one is believed. A later timeline of the same system is a
// failover: connections to the server of before are ended. Everything else that differs is refused.
func (f *Fleet) judge(server Server) error {
	f.mu.Lock()
	known := f.known
	var refused error
	var left []*socket
	isNewer := false
	switch {
	case known == Server{}:
		f.known = server
	case server.System != known.System || server.Database != known.Database:
		refused = &OtherServerError{server, known}
	case server.Timeline < known.Timeline:
		refused = &OldServerError{server, known}
	case server.Timeline > known.Timeline:
		isNewer = true
		f.known, left = server, f.behindLocked(server.Timeline)
	}
	f.mu.Unlock()
	switch {
	case refused != nil:
		f.sayRefused(server, refused)
	case isNewer:
		f.logger.Warn("server_changed", "from", known.Addr, "to", server.Addr, "timeline", server.Timeline, "connections_ended", len(left))
		for _, s := range left {
			s.end(errFailedOver)
		}
		f.resetPools()
	}
	return refused
}

// behindLocked returns the connections to servers on earlier timelines.
func (f *Fleet) behindLocked(timeline int64) (behind []*socket) {
	for s := range f.sockets {
		if at := s.timeline.Load(); at != 0 && at < timeline {
			behind = append(behind, s)
		}
	}
	return behind
}

func (f *Fleet) sayRefused(server Server, refused error) {
	now := f.elapsed()
	f.mu.Lock()
	said, ok := f.refusedAt[server]
	again := !ok || now-said >= refusedAgain
	if again {
		f.refusedAt[server] = now
	}
	f.mu.Unlock()
	if again {
		f.logger.Warn("server_refused", "error", refused)
	}
}

// expectSQL returns a statement that fails through a pooler whose session leads to another server than this process works
// with; "" when none is known.
func (f *Fleet) expectSQL() string {
	known := f.Known()
	if known == (Server{}) {
		return ""
	}
	return fmt.Sprintf("SELECT reconciler.expect_server(%d, %d, %d)", known.System, known.Timeline, known.Database)
}

// expected explains what that statement answered, and learns from it.
func (f *Fleet) expected(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != wrongServer {
		return err
	}
	if parts := strings.Fields(pgErr.Detail); len(parts) == 3 {
		if server, unread := parseServer(parts[0], parts[1], parts[2], "the pooler"); unread == nil {
			if refused := f.judge(server); refused != nil {
				return fmt.Errorf("%w: %w", refused, err)
			}
		}
	}
	return err
}

// lentBy returns the Fleet of a pool that leads through a pooler, whose sessions may change servers at any time; nil for
// others.
func lentBy(pool *pgxpool.Pool) *Fleet {
	cfg := pool.Config().ConnConfig
	if tracer, ok := cfg.Tracer.(readOnlyTracer); ok && Pooled(cfg) {
		return tracer.fleet
	}
	return nil
}

// hosts returns configs of the single hosts of a config.
func hosts(cfg *pgx.ConnConfig) []*pgx.ConnConfig {
	var found []*pgx.ConnConfig
	at := map[string]*pgx.ConnConfig{}
	all := append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
	for _, one := range all {
		where := fmt.Sprintf("%s:%d", one.Host, one.Port)
		if host := at[where]; host != nil {
			host.Fallbacks = append(host.Fallbacks, one)
			continue
		}
		host := cfg.Copy()
		host.Host, host.Port, host.TLSConfig, host.Fallbacks = one.Host, one.Port, one.TLSConfig, nil
		at[where] = host
		found = append(found, host)
	}
	return found
}
