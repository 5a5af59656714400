package pgtest

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/pgreconciler/reconciler/internal/pgserver"
)

// instance is a server as this process uses it.
type instance struct {
	*pgserver.Server

	templates sync.Map // names of those that are there
	shared    bool     // other tests use it too
}

// settings are the same for every engine. Durability is off; everything that changes behaviour is as in production.
func settings() []string {
	return []string{
		"fsync=off",
		"full_page_writes=off",
		"max_connections=1000",
		"max_prepared_transactions=100",
		"wal_level=logical",
		"shared_buffers=256MB",
		"max_wal_size=4GB",
		"checkpoint_timeout=1h",
		"timezone=UTC",
		"log_timezone=UTC",
		"log_line_prefix=%m [%p] %d ",
		"log_checkpoints=off",
		"jit=off", // compiles for longer than the statements of the tests run
	}
}

func (i *instance) url(role, database string) string { return i.URL(url.User(role), database) }

// log returns the end of the server's log, or why there is none.
func (i *instance) log(t testing.TB) string {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	return i.LastLines(ctx, func(string) bool { return true })
}

// logOf returns the end of what the server logged about one database.
func (i *instance) logOf(ctx context.Context, database string) string {
	mentions := false
	return i.LastLines(ctx, func(line string) bool {
		if !strings.HasPrefix(line, "\t") { // Continuation lines belong to the line before.
			mentions = strings.Contains(line, "] "+database+" ")
		}
		return mentions
	})
}
