package leader

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// F131: DDL that fires no trigger has the resource synced once, by the next look of the leader.
func TestF131_DDLThatChangesRowsIsSynced(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.exec(`CREATE TYPE mood AS ENUM ('ok', 'bad'); CREATE TYPE size AS (w int);
		CREATE TABLE parts (id int, v int, mood mood, size size, PRIMARY KEY (id)) PARTITION BY RANGE (id);
		CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10); CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
		CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2'; CREATE TABLE teams (id int PRIMARY KEY, name text);
		CREATE VIEW joined AS SELECT p.id, t.name FROM parts p LEFT JOIN teams t ON t.id = p.v;
		SELECT reconciler.track('part', 'parts', '{id}', '''eu''', 'twice(v) > 0'),
			reconciler.track('joined', 'joined', '{id}', '''eu''', depends_on => '{"parts": {"id": "id"}, "teams": {}}'::jsonb - 'teams')`)
	m := &mender{steward: &Steward{Pool: b.db.Pool, Logger: b.log}}
	marked := func(statement string, want string) {
		t.Helper()
		b.exec(statement + `; DELETE FROM reconciler.outbox`)
		for range 2 { // once, and not again
			require.NoError(t, m.syncAltered(t.Context()))
		}
		require.Equal(t, want, b.text(`SELECT coalesce(string_agg(DISTINCT r.name || ' ' || n.times, ', ' ORDER BY r.name || ' ' || n.times), '')
			FROM (SELECT resource_id, count(*) AS times FROM reconciler.outbox WHERE key IS NULL AND dependency_id IS NULL GROUP BY 1) AS n
			JOIN reconciler.resources r ON r.id = n.resource_id`), statement)
	}
	marked(`SELECT 1`, ``)
	marked(`ALTER TABLE parts ALTER COLUMN size TYPE size USING NULL`, `joined 1, part 1`)
	marked(`ALTER TYPE mood RENAME VALUE 'bad' TO 'ill'`, `joined 1, part 1`)
	marked(`ALTER TYPE size ADD ATTRIBUTE h int`, `joined 1, part 1`)
	marked(`CREATE OR REPLACE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + $1'`, `part 1`)
	marked(`CREATE OR REPLACE VIEW joined AS SELECT p.id, upper(t.name) AS name FROM parts p LEFT JOIN teams t ON t.id = p.v`, `joined 1`)
	marked(`ALTER TABLE parts DETACH PARTITION parts_2`, `joined 1, part 1`)
	marked(`DROP TABLE parts_1`, `joined 1, part 1`)
	marked(`CREATE INDEX ON parts (v); ANALYZE parts; COMMENT ON TABLE parts IS 'x'; ALTER TABLE parts RENAME TO pieces; GRANT SELECT ON pieces TO PUBLIC`, ``)
}
