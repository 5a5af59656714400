package e2e_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// C65: PostgreSQL has no connection left for us. At the start that is one sentence and exit code 3; at run time it is
// waited out as a server that is down, and nothing is lost.
func TestConnectionLimitIsWaitedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.db.Role(t, "limited", "")
	w.exec(fleet)
	w.exec(`SELECT reconciler.grant($1, 'runtime')`, role)
	w.exec(`INSERT INTO apps (id, region) VALUES (1, 'eu'), (2, 'eu')`)
	w.config = w.as(role)
	limit := func(connections int) { w.exec(fmt.Sprintf(`ALTER ROLE %s CONNECTION LIMIT %d`, role, connections)) }
	limit(0)
	refused := w.refused()
	require.Equal(t, 3, refused.code)
	require.Regexp(t, fmt.Sprintf(`^reconciler: cannot connect to database .* as user "%s": too many connections for role "%s"\n$`, role, role), refused.stderr)

	limit(-1)
	d := w.start()
	w.wait()
	limit(0)
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, role)
	d.answers("/readyz", 503, "the database does not answer\n", patience)
	w.exec(`UPDATE apps SET version = 2 WHERE id = 1; DELETE FROM apps WHERE id = 2`)
	d.answers("/healthz", 200, "ok\n", 0)
	limit(-1)
	w.has("eu", map[string]string{"app/1.json": "{\"id\": 1, \"version\": 2}\n"})
	d.answers("/readyz", 200, "ok\n", patience)
	d.stop()
}
