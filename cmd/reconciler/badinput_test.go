package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/pgtest"
)

// onDatabase are arguments for every command that works on the database alone.
var onDatabase = map[string][]string{
	"apply cancel":    {"1"},
	"apply list":      {},
	"apply pause":     {"1"},
	"apply release":   {"1"},
	"apply resync":    {"deployments"},
	"apply retry":     {"1"},
	"apply show":      {"1"},
	"apply start":     {"1"},
	"apply stop":      {"1"},
	"apply wait":      {"1", "--timeout", "0"},
	"apply watch":     {"99"}, // of one that is there it would see the end
	"acknowledge":     {"eu"},
	"approve":         {"eu"},
	"diff":            {},
	"doctor":          {},
	"explain":         {"eu", "deployments", "1"},
	"grant":           {"postgres", "viewer"},
	"kubernetes rbac": {"eu"},
	"migrate down":    {},
	"migrate status":  {},
	"migrate up":      {},
	"pause":           {"eu"},
	"release":         {"eu"},
	"resume":          {"eu"},
	"retry":           {"eu"},
	"run":             {},
	"status":          {},
	"sync":            {"eu"},
	"top":             {"--once"},
	"track":           {"deployments", "public.deployments", "--key", "id", "--target", "region"},
	"untrack":         {"deployments"},
	"wait":            {"--timeout", "0"},
}

// each calls fn with a whole command line for each of them.
func each(t *testing.T, fn func(t *testing.T, name string, args []string)) {
	t.Helper()
	for name, arguments := range onDatabase {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, name, append(strings.Fields(name), arguments...))
		})
	}
}

func TestTheListOfCommandsOnTheDatabaseIsComplete(t *testing.T) {
	t.Parallel()
	// bench makes a database of its own; TestBench has what it needs.
	without := map[string]bool{
		"agent": true, "agent approve": true, "agent config print": true, "agent status": true, "bench": true, "config print": true, "dev": true, "migrate print": true, "version": true,
		"watch": true,
	}
	leaves(func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "reconciler ")
		_, listed := onDatabase[name]
		require.NotEqual(t, without[name], listed, name)
	})
}

// C64: everything at once, with its place; exit code 2; nothing started: the database that is named does not exist.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()

	t.Run("IsReportedAtOnceByRun", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t, "RECONCILER_LOG_LEVLE=debug")
		p.write(t, "reconciler.yaml", `database_url: postgres://app:hunter2@127.0.0.1:1/shop
poll_interval: 5
log: {levle: debug}
targets:
  - {name: eu, driver: file, concurency: 4, options: {dir: /none/such}}
  - {name: eu, driver: fiel}
  - {name: us, driver: file, guard: {max_deletes: 5%}, options: {}}
  - {driver: file, options: {dir: relative, color: red}}
  - {name: hook, driver: webhook, options: {url: "https://apply.internal", secret_env: NO_SUCH_SECRET}}
`)
		r := p.run(t, "run", "--shutdown-timeout", "1", "now")
		require.Equal(t, 2, r.code)
		require.Empty(t, r.stdout)
		golden(t, "bad_config", regexp.MustCompile(`The drivers are [a-z, ]+`).ReplaceAllString(r.stderr, "The drivers are ..."))
	})

	t.Run("StopsEveryCommand", func(t *testing.T) {
		t.Parallel()
		each(t, func(t *testing.T, _ string, args []string) {
			t.Helper()
			p := newPlace(t)
			p.write(t, "reconciler.yaml", "database_url: postgres://app@127.0.0.1:1/shop\nlistn: 127.0.0.1:0\ntargets: [{name: eu, driver: file, options: {dir: /}}]\n")
			require.Equal(t, result{code: 2, stderr: "reconciler: invalid configuration: /etc/reconciler/reconciler.yaml:2:1: listn: unknown key; did you mean \"listen\"?\n"}, p.run(t, args...))
		})
	})

	for name, test := range map[string]struct{ file, stderr string }{
		"WithoutTargetsRunsNothing": {
			"database_url: postgres://app@127.0.0.1:1/shop\n",
			"reconciler: targets: is empty: configure at least one target\nhint: see `reconciler run --help`\n",
		},
		"ThatIsNoYAML": {
			"database_url: [\n", "",
		},
		"WithASecretInAFaultyURLDoesNotShowIt": {
			"database_url: postgres://app:hunter2@db:notaport/shop\ntargets: [{name: eu, driver: file, options: {dir: /}}]\n", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write(t, "reconciler.yaml", test.file)
			r := p.run(t, "run")
			require.Equal(t, 2, r.code)
			require.NotContains(t, r.stderr, "hunter2") // C69
			if test.stderr != "" {
				require.Equal(t, test.stderr, r.stderr)
			}
		})
	}

	t.Run("InAFileThatCannotBeRead", func(t *testing.T) {
		t.Parallel()
		p := newPlace(t)
		require.NoError(t, os.Mkdir(filepath.Join(p.dir, "reconciler.yaml"), 0o700))
		r := p.run(t, "config", "print")
		require.Equal(t, result{code: 2, stderr: "reconciler: invalid configuration: /etc/reconciler/reconciler.yaml: cannot read the config file \"/etc/reconciler/reconciler.yaml\": is a directory\n"}, r)
	})
}

// A config that only lacks what the targets need is good enough for all but run, diff and doctor.
func TestCommandsNeedNoSecretsOfTargets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "eu")))
	w.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\ntargets: [{name: eu, driver: file, options: {dir: /none/such/dir}}]\n", w.db.URL))
	require.Zero(t, w.run(t, "status").code)
	require.Zero(t, w.run(t, "pause", "eu").code)
	require.Zero(t, w.run(t, "config", "print").code)
	for _, command := range []string{"run", "diff"} {
		r := w.run(t, command)
		require.Equal(t, 2, r.code, command)
		require.Contains(t, r.stderr, "options.dir: ", command)
	}
	r := w.run(t, "doctor")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "WRONG  target                 target eu: options.dir: ")
}

// C65.
func TestUnreachableDatabaseIsSaidClearly(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := listener.Addr().(*net.TCPAddr).Port
	require.NoError(t, listener.Close())
	each(t, func(t *testing.T, _ string, args []string) {
		t.Helper()
		p := newPlace(t)
		p.write(t, "reconciler.yaml", fmt.Sprintf("database_url: postgres://app:hunter2@127.0.0.1:%d/shop\ntargets: [{name: eu, driver: file, options: {dir: %q}}]\n", port, p.dir))
		require.Equal(t, result{code: 3, stderr: fmt.Sprintf("reconciler: cannot connect to database \"shop\" at 127.0.0.1:%d as user \"app\": connection refused\n", port)}, p.run(t, args...))
	})
}

func TestUnreachableDatabaseNamesTheReason(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	role := db.Role(t, "shut_out", "")
	db.Exec(t, "REVOKE CONNECT ON DATABASE "+db.Name+" FROM PUBLIC")
	p := newPlace(t, "RECONCILER_DATABASE_URL="+db.URLFor(role))
	r := p.run(t, "status")
	require.Equal(t, 3, r.code)
	require.Regexp(t, `^reconciler: cannot connect to database "`+db.Name+`" at 127\.0\.0\.1:\d+ as user "`+role+`": permission denied for database "`+db.Name+"\"\n$", r.stderr)

}

// C67. Rights and settings that a role or a database has are overridden; a standby is a standby.
func TestReadOnlyDatabaseIsNotUsed(t *testing.T) {
	t.Parallel()
	primary := pgtest.Server(t)
	db := primary.New(t)
	standby := primary.Standby(t)
	standby.AwaitReplay(t, primary)
	r := newPlace(t, "RECONCILER_DATABASE_URL="+standby.URL(db.Name)).run(t, "pause", "eu")
	require.Equal(t, 3, r.code)
	require.Regexp(t, `^reconciler: cannot connect to database "`+db.Name+`" at 127\.0\.0\.1:\d+ as user "postgres": read only connection`+"\n$", r.stderr)
}

// C66.
func TestMissingSchemaNamesTheCommand(t *testing.T) {
	t.Parallel()
	works := map[string]bool{"migrate up": true, "migrate down": true, "migrate status": true}
	each(t, func(t *testing.T, name string, args []string) {
		t.Helper()
		if works[name] {
			return
		}
		p := newPlace(t)
		p.write(t, "reconciler.yaml", fmt.Sprintf("database_url: %q\ntargets: [{name: eu, driver: file, options: {dir: %q}}]\n", pgtest.Empty(t).URL, p.dir))
		require.Equal(t, result{code: 3, stderr: "reconciler: the database has no schema reconciler yet: run `reconciler migrate up`\n"}, p.run(t, args...))
	})
}

// C54, C66.
func TestRunRefusesASchemaThatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	newest, err := newestMigration()
	require.NoError(t, err)
	w.db.Exec(t, "INSERT INTO reconciler.goose_db_version (version_id, is_applied) VALUES (99999, true)")
	require.Equal(t, result{code: 3, stderr: fmt.Sprintf("reconciler: the database has schema version 99999, this binary knows up to %d: "+
		"use a newer reconciler, or take the schema back with the newer one (`reconciler migrate down`)\n", newest)}, w.run(t, "run"))
	require.Zero(t, w.run(t, "status").code, "what works goes on working")
	r := w.run(t, "migrate", "up")
	require.Equal(t, 3, r.code)
	require.Contains(t, r.stderr, "the database has schema version 99999")
	r = w.run(t, "migrate", "status")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "the database has schema version 99999")
	r = w.run(t, "doctor")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "                              -> Use a newer reconciler.\n")

	w.db.Exec(t, "DELETE FROM reconciler.goose_db_version WHERE version_id IN (99999, $1)", newest)
	require.Equal(t, result{code: 3, stderr: fmt.Sprintf("reconciler: the database has schema version %d, this binary needs %d: run `reconciler migrate up`\n", newest-1, newest)}, w.run(t, "run"))
	r = w.run(t, "doctor")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, fmt.Sprintf("WRONG  version                the schema has version %d, this reconciler (devel) needs %d\n                              -> reconciler migrate up\n", newest-1, newest))
}

// C66.
func TestMissingRightsNameTheGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	role := w.db.Role(t, "guest", "")
	w.config(t, w.db.URLFor(role))
	grant := func(kind string) string {
		return fmt.Sprintf("hint: as the owner of schema reconciler: SELECT reconciler.grant('%s', '%s');\n", role, kind)
	}
	denied := func(what string) string {
		return fmt.Sprintf("reconciler: role \"%s\" lacks a right: permission denied for %s\n", role, what)
	}
	require.Equal(t, result{code: 3, stderr: denied("schema reconciler") + grant("viewer")}, w.run(t, "status"))
	require.Equal(t, result{code: 3, stderr: denied("schema reconciler") + grant("operator")}, w.run(t, "pause", "eu"))
	require.Equal(t, result{code: 3, stderr: denied("schema reconciler") + grant("runtime")}, w.run(t, "diff"))
	require.Equal(t, result{code: 3, stderr: denied("schema reconciler") + grant("definer")}, w.run(t, "untrack", "deployments"))

	w.db.Exec(t, "SELECT reconciler.grant($1, 'viewer')", role)
	require.Zero(t, w.run(t, "status").code)
	require.Equal(t, result{code: 3, stderr: denied("function pause") + grant("operator")}, w.run(t, "pause", "eu"))
	require.Equal(t, result{code: 3, stderr: denied("table sync_runs") + grant("runtime")}, w.run(t, "sync", "--report"))
	r := w.run(t, "run")
	require.Equal(t, 3, r.code)
	require.Regexp(t, `^reconciler: role "`+role+`" lacks \d+ rights that the daemon needs, such as [A-Z]+ on (function|table) reconciler\.\w+.*\n`+grantPattern(grant("runtime"))+`$`, r.stderr)
	require.Equal(t, result{code: 3, stderr: denied("function grant") + "hint: the schema belongs to role postgres: run this as that role\n"},
		w.run(t, "grant", role, "runtime"))
	require.Equal(t, result{code: 3, stderr: fmt.Sprintf("reconciler: role %s may not track public.deployments: it needs SELECT and TRIGGER on it\nhint: GRANT SELECT, TRIGGER ON public.deployments TO %s;\n", role, role)},
		afterGrant(t, w, role, "definer").run(t, "track", "others", "deployments", "--key", "id", "--target", "region"))
	r = w.run(t, "migrate", "down")
	require.Equal(t, 3, r.code)
	require.Contains(t, r.stderr, "hint: the schema belongs to role postgres: run this as that role\n")

	empty := pgtest.Empty(t)
	w.config(t, empty.URLFor(role))
	r = w.run(t, "migrate", "up")
	require.Equal(t, 3, r.code)
	require.Equal(t, fmt.Sprintf("reconciler: role \"%s\" lacks a right: permission denied for database %s\nhint: as the owner of the database: GRANT CREATE ON DATABASE %s TO %s;\n", role, empty.Name, empty.Name, role), r.stderr)
}

func grantPattern(hint string) string {
	return strings.NewReplacer("(", `\(`, ")", `\)`, ".", `\.`).Replace(hint)
}

func afterGrant(t *testing.T, w *world, role, kind string) *world {
	t.Helper()
	w.db.Exec(t, "SELECT reconciler.grant($1, $2)", role, kind)
	return w
}

// C68: names are values, never SQL, and do nothing to a terminal.
func TestHostileNamesDoNoHarm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.value(t, "SELECT count(*)::text FROM reconciler.ledger")
	for _, name := range []string{"'; DROP SCHEMA reconciler CASCADE; --", "../../etc/passwd", "\x1b[2J\x1b]0;owned\a", "eu\n42501", "\xff\xfe", "$1", `"`, "%s%n"} {
		for _, command := range []string{"pause", "resume", "approve", "acknowledge", "release", "retry", "sync", "status", "untrack"} {
			r := w.run(t, command, "--", name)
			require.Equal(t, 2, r.code, "%s %q", command, name)
			require.NotContains(t, r.stdout+r.stderr, "\x1b", "%s %q", command, name)
		}
		require.Equal(t, 2, w.run(t, "track", "--key", name, "--target", "region", "--", name, "public.deployments").code)
		require.Equal(t, 2, w.run(t, "track", "--key", "id", "--target", "region", "--", "fine", name).code)
		require.Equal(t, 2, w.run(t, "wait", "--target", name).code)
		r := w.run(t, "explain", "--", name, "deployments", name)
		require.NotContains(t, r.stdout+r.stderr, "\x1b")
	}
	require.Equal(t, result{code: 2, stderr: "reconciler: no target is named E'\\x1b[2J'\nhint: Targets: ap, eu, us\n"},
		quoteAsIs(w.run(t, "pause", "\x1b[2J")))
	require.Equal(t, before, w.value(t, "SELECT count(*)::text FROM reconciler.ledger"))

	w.db.Exec(t, "UPDATE reconciler.ledger SET key = E'a\\x1b[31m\\u202e\\tb' WHERE key = '3'")
	r := w.run(t, "status", "eu", "--failing", "--limit", "2")
	require.Contains(t, r.stdout, `a\x1b[31m\u202e\tb`)
	require.NotContains(t, r.stdout, "\x1b")
}

// quoteAsIs allows for both ways in which a name may be quoted.
func quoteAsIs(r result) result {
	r.stderr = strings.ReplaceAll(r.stderr, `named '\x1b[2J'`, `named E'\x1b[2J'`)
	return r
}

// C69.
func TestNoCommandShowsAPassword(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := withPassword(w.db.URL)
	w.config(t, secret)
	for name, arguments := range onDatabase {
		if name == "run" || strings.HasPrefix(name, "migrate d") {
			continue
		}
		r := w.run(t, append(strings.Fields(name), arguments...)...)
		require.NotContains(t, r.stdout+r.stderr, "hunter2", name)
	}
	r := w.run(t, "config", "print", "-o", "json")
	require.Zero(t, r.code)
	require.Contains(t, r.stdout, "postgres:REDACTED@")
	require.NotContains(t, r.stdout, "hunter2")
}
