package pgtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// Programs runs a shell command beside the server, with the server's own programs in its path, such as pg_dump, and the server as
// their default. It fails unless the command is silent.
func (db *DB) Programs(t testing.TB, command string) {
	t.Helper()
	conn := db.Conn(t)
	var bin, port string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT setting, current_setting('port') FROM pg_config WHERE name = 'BINDIR'`).Scan(&bin, &port))
	line := fmt.Sprintf("PATH=%s:$PATH PGHOST=127.0.0.1 PGPORT=%s PGUSER=postgres bash -c '%s' 2>&1 || echo failed", bin, port, command)
	_, err := conn.Exec(t.Context(), `CREATE TEMP TABLE output (line text); COPY output FROM PROGRAM $command$`+line+`$command$`)
	require.NoError(t, err, line)
	rows, err := conn.Query(t.Context(), `SELECT line FROM output`)
	require.NoError(t, err)
	output, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, output, line)
}

// Dump has pg_dump write the database to a file of the server, which Restore removes.
func (db *DB) Dump(t testing.TB) (file string) {
	t.Helper()
	file = "/tmp/" + db.Name + ".dump"
	db.Programs(t, fmt.Sprintf("pg_dump -Fc -f %s %s", file, db.Name))
	return file
}

// Restore has pg_restore load a dump, once.
func (db *DB) Restore(t testing.TB, file string, options ...string) {
	t.Helper()
	db.Programs(t, fmt.Sprintf("pg_restore --single-transaction %s -d %s %s && rm %[3]s", strings.Join(options, " "), db.Name, file))
}

// Move has pg_restore load a dump as logical replication copies a database, once: the schema and the rows, and each sequence at its start.
func (db *DB) Move(t testing.TB, file string, options ...string) {
	t.Helper()
	list := file + ".list"
	db.Programs(t, fmt.Sprintf(`pg_restore -l %s | grep -v "SEQUENCE SET" > %s`, file, list))
	db.Restore(t, file, append(options, "-L "+list)...)
	db.Programs(t, "rm "+list)
}
