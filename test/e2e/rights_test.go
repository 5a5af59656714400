package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// roles are the people and programs of a company that gives nobody more rights than needed.
type roles struct {
	owner    string // of the schema reconciler
	app      string // owns the tracked tables, and tracks them
	runtime  string // the daemon
	operator string // a person on call
	viewer   string // a dashboard
	writer   string // writes rows, and has no right on the schema reconciler
}

// as returns the path of a config whose database_url is a role's.
func (w *world) as(role string) string {
	w.t.Helper()
	path := w.path(role + ".yaml")
	w.configureFile(path, []object{w.fileTarget("eu"), w.fileTarget("us")}, object{"database_url": w.db.URLFor(role)})
	return path
}

func (w *world) okAs(role string, args ...string) string {
	w.t.Helper()
	r := w.cliWith(w.as(role), args...)
	require.Equal(w.t, 0, r.code, "%v as %s\n%s%s", args, role, r.stdout, r.stderr)
	return r.stdout
}

// execAs runs SQL on a connection of a role's own.
func (w *world) execAs(role, sql string) {
	w.t.Helper()
	conn := w.db.ConnAs(w.t, role)
	_, err := conn.Exec(w.t.Context(), sql)
	require.NoError(w.t, err, "%s as %s", sql, role)
}

// leastPrivilege migrates, grants and tracks, each as the role that should.
func leastPrivilege(t *testing.T) (*world, roles) {
	t.Helper()
	w := newWorldOn(t, pgtest.Empty(t))
	r := roles{
		owner: w.db.Role(t, "owner", ""), app: w.db.Role(t, "app", ""), runtime: w.db.Role(t, "runtime", "NOBYPASSRLS"),
		operator: w.db.Role(t, "operator", ""), viewer: w.db.Role(t, "viewer", ""), writer: w.db.Role(t, "writer", ""),
	}
	w.exec(fmt.Sprintf(`GRANT CREATE ON DATABASE %s TO %s; CREATE SCHEMA shop AUTHORIZATION %s`, w.db.Name, r.owner, r.app))
	w.okAs(r.owner, "migrate", "up")
	w.okAs(r.owner, "grant", r.app, "definer")
	w.okAs(r.owner, "grant", r.runtime, "runtime")
	w.okAs(r.owner, "grant", r.operator, "operator")
	w.okAs(r.owner, "grant", r.viewer, "viewer")
	w.execAs(r.app, fmt.Sprintf(`
CREATE TABLE shop.apps (id bigint PRIMARY KEY, region text, version bigint NOT NULL DEFAULT 1, state text NOT NULL DEFAULT 'running');
CREATE INDEX ON shop.apps (region, id) WHERE state = 'running';
CREATE TABLE shop.teams (name text PRIMARY KEY, region text NOT NULL);
CREATE TABLE shop.members (id int PRIMARY KEY, team text NOT NULL REFERENCES shop.teams);
CREATE VIEW shop.people AS SELECT m.id, t.name AS team, t.region FROM shop.members m JOIN shop.teams t ON t.name = m.team;
GRANT USAGE ON SCHEMA shop TO %[1]s; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON shop.apps, shop.teams, shop.members TO %[1]s`, r.writer))
	require.Equal(t, "resource app: created\n", w.okAs(r.app, "track", "app", "shop.apps", "--key", "id", "--target", "region",
		"--running", "state = 'running'", "--ignore", "region,state"))
	require.Equal(t, "resource person: created\n", w.okAs(r.app, "track", "person", "shop.people", "--key", "id", "--target", "region",
		"--depends-on", `{"shop.members": {"id": "id"}, "shop.teams": {"name": "team"}}`))
	w.config = w.as(r.runtime)
	return w, r
}

// C10: the daemon needs the rights of `grant ROLE runtime` and no others, who writes rows needs none at all, and each
// command needs the kind of role that the documentation says.
// shop is what the targets must have of the tables of leastPrivilege: files by name, by target.
func (w *world) shop() map[string]map[string]string {
	w.t.Helper()
	rows := map[string]map[string]string{"eu": {}, "us": {}}
	for _, line := range w.column(`SELECT format(E'%s app/%s.json {"id": %s, "version": %s}\n', region, id, id, version) FROM shop.apps WHERE state = 'running'
		UNION ALL SELECT format(E'%s person/%s.json {"id": %s, "team": "%s", "region": "%s"}\n', region, id, id, team, region) FROM shop.people`) {
		var target, name string
		_, err := fmt.Sscan(line, &target, &name)
		require.NoError(w.t, err)
		rows[target][name] = line[len(target)+len(name)+2:]
	}
	return rows
}

// sameAsTheShop waits for what has been committed, and says that the targets have it.
func (w *world) sameAsTheShop() {
	w.t.Helper()
	w.wait()
	for target, files := range w.shop() {
		require.NoError(w.t, w.differs(target, files))
	}
}

func TestEverythingWorksWithLeastPrivilege(t *testing.T) {
	t.Parallel()
	w, r := leastPrivilege(t)
	require.Equal(t, "false", w.text(`SELECT bool_or(rolsuper OR rolbypassrls OR rolcreaterole) FROM pg_roles WHERE rolname IN ($1, $2, $3)`, r.owner, r.app, r.runtime))
	require.Equal(t, "false", w.text(`SELECT has_schema_privilege($1, 'reconciler', 'USAGE')`, r.writer))
	w.execAs(r.writer, `INSERT INTO shop.apps (id, region) SELECT i, 'eu' FROM generate_series(1, 40) AS i;
INSERT INTO shop.teams VALUES ('red', 'eu'), ('blue', 'us'); INSERT INTO shop.members VALUES (1, 'red'), (2, 'blue')`)
	first := w.start()
	w.wait()
	require.Empty(t, w.wrong(w.as(r.viewer)))
	w.sameAsTheShop()
	require.Len(t, w.shop()["eu"], 41)

	// Every way to write, by somebody who has no right on the schema; the view's changes are expanded by the leader.
	w.execAs(r.writer, `UPDATE shop.apps SET version = 2 WHERE id <= 5; UPDATE shop.apps SET region = 'us' WHERE id IN (6, 7);
DELETE FROM shop.apps WHERE id = 8; UPDATE shop.teams SET region = 'us' WHERE name = 'red'; DELETE FROM shop.members WHERE id = 2`)
	w.sameAsTheShop()
	require.Equal(t, map[string]string{"person/1.json": `{"id": 1, "team": "red", "region": "us"}` + "\n"},
		subset(w.shop()["us"], "person/1.json", "person/2.json"))

	// What was missed with triggers off is found by a sync that the operator asks for.
	w.exec(`SET session_replication_role = replica; UPDATE shop.apps SET version = 3 WHERE id = 9; RESET session_replication_role`)
	require.NoError(t, os.Remove(w.path("eu/app/10.json")))
	w.okAs(r.operator, "sync", "eu", "--wait")
	w.sameAsTheShop()
	w.okAs(r.runtime, "sync", "eu", "--report", "--wait")

	// Commands, as the kinds of role that may call them.
	w.okAs(r.operator, "pause", "eu", "--reason", "lunch")
	w.execAs(r.writer, `UPDATE shop.apps SET version = 4 WHERE id = 11`)
	require.Equal(t, 1, w.cliWith(w.as(r.viewer), "wait", "--timeout", patience.String()).code)
	w.okAs(r.operator, "resume", "eu")
	w.okAs(r.viewer, "wait")
	w.sameAsTheShop()
	w.okAs(r.operator, "retry", "eu")
	w.okAs(r.viewer, "status")
	w.okAs(r.viewer, "explain", "eu", "app", "11")
	w.okAs(r.runtime, "diff")
	refused := w.cliWith(w.as(r.viewer), "pause", "eu")
	require.Equal(t, 3, refused.code)
	require.Equal(t, fmt.Sprintf("reconciler: role %q lacks a right: permission denied for function pause\nhint: as the owner of schema reconciler: SELECT reconciler.grant('%s', 'operator');\n", r.viewer, r.viewer), refused.stderr)

	// The leader's own work: identity of the server (pg_control_system), retention.
	first.stop()
	w.exec(`UPDATE reconciler.installation SET rotated_at = '2000-01-01'`)
	second := w.start()
	second.awaits("outbox_retained", "done", "moved on to outbox_1")
	w.execAs(r.writer, `UPDATE shop.apps SET version = 5 WHERE id = 12`)
	w.sameAsTheShop()
	// It empties a part only when nobody reads in it at that moment, and else half a minute later.
	eventually(t, patience, func() error {
		w.execAs(r.runtime, `SELECT reconciler.retain('1 day', 1000, '5 min')`)
		if size := w.text(`SELECT pg_relation_size('reconciler.outbox_0')`); size != "0" {
			return errors.New(size + " bytes")
		}
		return nil
	}, "the outbox is emptied")
	require.Equal(t, w.text(`SELECT system_identifier FROM pg_control_system()`), w.text(`SELECT system_identifier FROM reconciler.installation`))

	// DDL by the owner of the table: with ignored columns the triggers name the others, and have to be made anew. That
	// takes the owner, and the daemon is not; it says what to do, and so does doctor.
	w.execAs(r.app, `ALTER TABLE shop.apps ADD COLUMN note text`)
	second.stop()
	third := w.start()
	broken := third.awaits("capture_broken", "resource", "app")
	require.Equal(t, "ERROR", broken["level"])
	require.Equal(t, "shop.apps has other columns than when it was tracked: new note", broken["problem"])
	require.Equal(t, "SELECT reconciler.regenerate('app'); (tried: ERROR: permission denied for function regenerate (SQLSTATE 42501))", broken["remedy"])
	require.Equal(t, []check{{Finding: "resource app: shop.apps has other columns than when it was tracked: new note", Remedy: "SELECT reconciler.regenerate('app');"}},
		w.wrong(w.as(r.viewer)))
	w.execAs(r.app, `UPDATE shop.apps SET note = 'hello' WHERE id = 13; SELECT reconciler.regenerate('app')`)
	w.wait()
	require.Equal(t, `{"id": 13, "note": "hello", "version": 1}`+"\n", files(t, w.path("eu"))["app/13.json"])
	w.execAs(r.app, `UPDATE shop.apps SET note = 'bye' WHERE id = 13`)
	w.wait()
	require.Equal(t, `{"id": 13, "note": "bye", "version": 1}`+"\n", files(t, w.path("eu"))["app/13.json"])
	w.execAs(r.writer, `TRUNCATE shop.apps`)
	w.wait()
	require.Empty(t, subset(files(t, w.path("eu")), "app/1.json", "app/13.json"))
	for _, d := range []*daemon{first, second} {
		d.failedNothing()
	}
}

// check is a check of `reconciler doctor -o json`.
type check struct {
	OK              bool
	Finding, Remedy string
}

// wrong returns what doctor finds wrong, with a config.
func (w *world) wrong(config string) []check {
	w.t.Helper()
	var all, wrong []check
	r := w.jsonWith(config, &all, "doctor")
	for _, c := range all {
		if !c.OK {
			wrong = append(wrong, c)
		}
	}
	require.Equal(w.t, min(len(wrong), 1), r.code)
	return wrong
}

func subset(all map[string]string, names ...string) map[string]string {
	some := map[string]string{}
	for _, name := range names {
		if content, ok := all[name]; ok {
			some[name] = content
		}
	}
	return some
}

// C66: a role that lacks rights is told so before anything starts, and by which statement it gets them.
func TestMissingRightsAreReportedBeforeTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.db.Role(t, "nobody", "")
	w.config = w.as(role)
	hint := fmt.Sprintf("hint: as the owner of schema reconciler: SELECT reconciler.grant('%s', 'runtime');\n", role)
	r := w.refused()
	require.Equal(t, 3, r.code)
	require.Equal(t, fmt.Sprintf("reconciler: role %q lacks a right: permission denied for schema reconciler\n", role)+hint, r.stderr)

	// Some rights are not enough.
	w.exec("SELECT reconciler.grant($1, 'operator')", role)
	r = w.refused()
	require.Equal(t, 3, r.code)
	require.Regexp(t, fmt.Sprintf("^reconciler: role \"%s\" lacks [0-9]+ rights that the daemon needs, such as .+\n%s$", role, regexp.QuoteMeta(hint)), r.stderr)

	w.exec("SELECT reconciler.grant($1, 'runtime')", role)
	w.start().stop()
}
