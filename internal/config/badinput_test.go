package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeFile(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// target is a config with one target and these further lines.
func target(lines string) string {
	return "targets:\n- name: a\n  driver: dir\n  " + lines
}

func TestBadInputIsReportedWithPlaceAndRemedy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file, want string
	}{
		"UnknownKey":             {"databse_url: x", `reconciler.yaml:1:1: databse_url: unknown key; did you mean "database_url"?`},
		"UnknownKeyInGroup":      {"log:\n  levle: x", `reconciler.yaml:2:3: log.levle: unknown key; did you mean "level"?`},
		"UnknownKeyInTarget":     {target("concurency: 3"), `reconciler.yaml:4:3: targets[0].concurency: unknown key; did you mean "concurrency"?`},
		"KeyAtTheWrongPlace":     {target("max_deletes: 3"), `reconciler.yaml:4:3: targets[0].max_deletes: unknown key; did you mean targets[0].guard.max_deletes?`},
		"KeyLikeNone":            {"log: {zzzzzzz: 1}", `reconciler.yaml:1:7: log.zzzzzzz: unknown key; known here: format, level`},
		"KeyTwice":               {"notify: on\nnotify: off", `reconciler.yaml:2:1: notify: given twice, first at reconciler.yaml:1:1`},
		"OptionTwice":            {target("options:\n    dir: a\n    dir: b"), `reconciler.yaml:6:5: targets[0].options.dir: given twice, first at reconciler.yaml:5:5`},
		"ScalarForGroup":         {"log: debug", `reconciler.yaml:1:6: log: must be a mapping with the keys level, format, not a string`},
		"ListForScalar":          {"log:\n  level: [debug]", `reconciler.yaml:2:10: log.level: must be one of debug, info, warn, error, not a list`},
		"NumberForString":        {"targets: [{name: 7, driver: dir}]", `reconciler.yaml:1:18: targets[0].name: must be a string, not a number; put it in quotes`},
		"MappingForString":       {"database_url: {}", `reconciler.yaml:1:15: database_url: must be a string, not a mapping`},
		"StringForNumber":        {target(`concurrency: "8"`), `reconciler.yaml:4:16: targets[0].concurrency: must be a whole number, not the string "8"`},
		"FractionForWholeNumber": {target("concurrency: 8.5"), `reconciler.yaml:4:16: targets[0].concurrency: must be a whole number, not 8.5`},
		"NumberTooSmall":         {target("concurrency: 0"), `reconciler.yaml:4:16: targets[0].concurrency: must be from 1 to 1024, not 0`},
		"NumberTooLarge":         {target("concurrency: 1025"), `reconciler.yaml:4:16: targets[0].concurrency: must be from 1 to 1024, not 1025`},
		"NumberBeyondAllBounds":  {target("concurrency: 99999999999999999999"), `reconciler.yaml:4:16: targets[0].concurrency: must be a whole number, not the string "99999999999999999999"`},
		"FractionTooLarge":       {target("guard: {max_fraction: 1.5}"), `reconciler.yaml:4:25: targets[0].guard.max_fraction: must be from 0 to 1, not 1.5`},
		"StringForFraction":      {target("guard: {max_fraction: 20%}"), `reconciler.yaml:4:25: targets[0].guard.max_fraction: must be a number, not the string "20%"`},
		"NegativeRate":           {target("rate: -1"), `reconciler.yaml:4:9: targets[0].rate: must be from 0 to 1000000, not -1`},
		"BooleanForWord":         {"notify: false", `reconciler.yaml:1:9: notify: must be one of auto, on, off, not false`},
		"UnknownWord":            {target("sync_mode: delete"), `reconciler.yaml:4:14: targets[0].sync_mode: must be one of repair, report, not "delete"`},
		"SizeWithoutUnit":        {"memory_limit: 256", `reconciler.yaml:1:15: memory_limit: must be a size, a whole number with a unit (KiB, MiB, GiB) such as "256MiB", not 256`},
		"SizeOfAnotherUnit":      {"memory_limit: 256MB", `reconciler.yaml:1:15: memory_limit: must be a size, a whole number with a unit (KiB, MiB, GiB) such as "256MiB", not the string "256MB"`},
		"SizeTooSmall":           {"memory_limit: 31MiB", `reconciler.yaml:1:15: memory_limit: must be from 32MiB to 1024GiB, not 31MiB`},
		"SizeTooLarge":           {"memory_limit: 9223372036854775807GiB", `reconciler.yaml:1:15: memory_limit: must be from 32MiB to 1024GiB, not 9223372036854775807GiB`},
		"DurationWithoutUnit":    {"poll_interval: 5", `reconciler.yaml:1:16: poll_interval: needs a unit: write "5s", "5m" or "5h" instead of 5`},
		"DurationTextNoUnit":     {`poll_interval: "5"`, `reconciler.yaml:1:16: poll_interval: needs a unit: write "5s", "5m" or "5h" instead of 5`},
		"DurationZeroNoUnit":     {"poll_interval: 0", `reconciler.yaml:1:16: poll_interval: needs a unit: write "0s", "0m" or "0h" instead of 0`},
		"DurationNegative":       {"poll_interval: -5", `reconciler.yaml:1:16: poll_interval: must be a duration, a number with a unit (ms, s, m, h) such as "30s" or "1h30m", not -5`},
		"MappingTooLarge":        {"x-a: &a [" + strings.Repeat("1,", 60_000) + "]\nx-b: {b: *a, c: *a}", `reconciler.yaml:2:6: more than 100000 values, aliases counted`},
		"AddressAsNumber":        {"listen: 80", `reconciler.yaml:1:9: listen: must be a string, not a number; put it in quotes`},
		"URLTwiceWrong":          {"database_url: {}\ndirect_url: []", `reconciler.yaml:1:15: database_url: must be a string, not a mapping|reconciler.yaml:2:13: direct_url: must be a string, not a list`},
		"DurationInDays":         {"retention: {max_age: 7d}", `reconciler.yaml:1:22: retention.max_age: must be a duration, a number with a unit (ms, s, m, h) such as "30s" or "1h30m", not "7d"`},
		"DurationAsList":         {"poll_interval: [1s]", `reconciler.yaml:1:16: poll_interval: must be a duration such as "30s", not a list`},
		"DurationTooLong":        {target("timeout: 601s"), `reconciler.yaml:4:12: targets[0].timeout: must be from 100ms to 10m, not 10m1s`},
		"DurationTooShort":       {target("timeout: 99ms"), `reconciler.yaml:4:12: targets[0].timeout: must be from 100ms to 10m, not 99ms`},
		"IntervalZero":           {target("sync_interval: 0s"), `reconciler.yaml:4:18: targets[0].sync_interval: must be from 1s to 168h, not 0s; or "off"`},
		"BackoffUpsideDown":      {target("backoff: {min: 6m}"), `reconciler.yaml:4:18: targets[0].backoff.min: must not be longer than backoff.max, 5m, but is 6m`},
		"AddressWithoutPort":     {"listen: localhost", `reconciler.yaml:1:9: listen: must be "off" or host:port such as "127.0.0.1:7433", not "localhost"`},
		"AddressWithBadPort":     {`listen: ":70000"`, `reconciler.yaml:1:9: listen: must be "off" or host:port such as "127.0.0.1:7433", not ":70000"`},
		"AddressTwice":           {`pprof_listen: "127.0.0.1:7433"`, `reconciler.yaml:1:15: pprof_listen: is the address of listen; give the profiler one of its own, or "off"`},
		"TargetsAsMapping":       {"targets: {a: {driver: dir}}", `reconciler.yaml:1:10: targets: must be a list with one mapping for each target (- name: ...), not a mapping`},
		"TargetAsString":         {"targets: [a]", `reconciler.yaml:1:11: targets[0]: must be a mapping with the keys name, driver and options, not a string`},
		"TargetWithoutName":      {"targets: [{driver: dir}]", `reconciler.yaml:1:11: targets[0].name: is missing: give every target a name`},
		"TargetWithoutDriver":    {"targets:\n- name: a", `reconciler.yaml:2:3: targets[0].driver: is missing: choose one of dir, hook`},
		"TargetNameTwice":        {"targets: [{name: a, driver: dir}, {name: a, driver: dir}]", `reconciler.yaml:1:42: targets[1].name: "a" is already the name of targets[0] (reconciler.yaml:1:18)`},
		"UnknownDriver":          {"targets: [{name: a, driver: ftp}]", `reconciler.yaml:1:29: targets[0].driver: unknown driver "ftp"; choose one of dir, hook`},
		"MisspeltDriver":         {"targets: [{name: a, driver: hok}]", `reconciler.yaml:1:29: targets[0].driver: unknown driver "hok"; did you mean "hook"? The drivers are dir, hook`},
		"OptionsAsList":          {target("options: [1]"), `reconciler.yaml:4:12: targets[0].options: must be a mapping of the driver's options, not a list`},
		"RootAsList":             {"- a", `reconciler.yaml:1:1: must be a mapping with keys such as database_url and targets, not a list`},
		"SyntaxError":            {"a: [1,\n", `reconciler.yaml:1:4: not valid YAML: sequence end token ']' not found`},
		"TabIndentation":         {"log:\n\tlevel: info\n", `reconciler.yaml:2:1: not valid YAML: found character ' ' that cannot start any token`},
		"SecondDocument":         {"notify: on\n---\nnotify: off\n", `reconciler.yaml:3:1: a second document starts here; a config file holds one`},
		"NotUTF8":                {"notify: \xff", `reconciler.yaml: not a text in UTF-8`},
		"UnknownTag":             {"notify: !secret x", `reconciler.yaml:1:9: tags other than !!str, !!int, !!float, !!bool, !!null, !!map and !!seq are not supported`},
		"UnknownAlias":           {"notify: *x", `reconciler.yaml:1:9: the alias has no anchor (&name) before it`},
		"AliasOfItself":          {"log: &x\n  level: *x\n", `reconciler.yaml:2:10: the alias has no anchor (&name) before it`},
		"MergeOfScalar":          {"log: {<<: 3}", `reconciler.yaml:1:11: << takes a mapping or a list of mappings, not a number`},
		"NotANumber":             {target("options: {x: .nan}"), `reconciler.yaml:4:16: this kind of value is not supported; use strings, numbers, booleans, lists and mappings`},
		"MappingAsKey":           {"x-a: &a b\n*a : 2", `reconciler.yaml:2:1: a key must be a plain word or a string`},
		"NestedTooDeep":          {"x-a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70), `reconciler.yaml:1:69: nested more than 64 levels deep`},
		"URLOfAnotherDatabase":   {"database_url: mysql://u:hunter2@h/db", `reconciler.yaml:1:15: database_url: must begin with postgres:// or postgresql://, such as "postgres://user@host:5432/database"`},
		"URLWithBadSetting":      {"database_url: postgres://u:hunter2@h/db?sslmode=maybe", `reconciler.yaml:1:15: database_url: postgres://u:REDACTED@h/db?sslmode=maybe: failed to configure TLS (sslmode is invalid)`},
		"URLWithOddPassword":     {"direct_url: postgres://u:hun/ter2@h/db", `reconciler.yaml:1:13: direct_url: holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23, or keep the password in a file: postgres://user@host:5432/database?passfile=PATH`},
		"URLWithBadEscape":       {"database_url: postgres://u:%zz@h/db", `reconciler.yaml:1:15: database_url: holds a % that no two hexadecimal digits follow: write % as %25`},
		"URLEmpty":               {`database_url: ""`, `reconciler.yaml:1:15: database_url: is empty: write a URL such as "postgres://user@host:5432/database"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, clean := setup(t, tc.file)
			_, err := Load(opts)
			require.Equal(t, strings.Split(tc.want, "|"), problemLines(t, err, clean))
		})
	}
}

func TestWrongDatabaseURLIsNotMissingToo(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "database_url: 5")
	_, _, err := LoadAndOpen(opts, driverEnv(noEnv))
	require.Equal(t, []string{"reconciler.yaml:1:15: database_url: must be a string, not a number; put it in quotes"}, problemLines(t, err, clean))
}

func TestF136_ProxiesOfTheEnvironmentAreChecked(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "database_url: postgres://h/db")
	opts.Environ = []string{"https_proxy=http://app:p@ss/word#1@proxy:3128", "HTTP_PROXY=app:pass@proxy:3128", "ALL_PROXY=", "NO_PROXY=#"}
	_, _, err := LoadAndOpen(opts, driverEnv(noEnv))
	require.Equal(t, []string{"env https_proxy: holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23"}, problemLines(t, err, clean))
}

// C68.
func TestHostileTargetNamesAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"../../etc/passwd", "a..b", "'; drop table x", "-rf", ".hidden", "_x", "a b", "a/b", "nul\x00", "naïve", strings.Repeat("a", 64),
	} {
		require.EqualError(t, checkName(name), strings.ReplaceAll(
			`NAME is not a valid name: use 1 to 63 letters, digits, ".", "_" and "-", beginning with a letter or digit, without ".."`,
			"NAME", quoted(textNode(name))))
	}
	for _, name := range []string{"a", "7", "eu-west-1", "A_b.c", strings.Repeat("a", 63)} {
		require.NoError(t, checkName(name))
	}
}

// C64.
func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, `
databse_url: postgres://h/db
log: {level: 5}
poll_interval: 30
targets:
- name: a
  driver: hook
  options: {secret_env: HOOK_SECRET}
- name: a
  driver: dir
  options: {path: x}
- name: c d
  driver: dirr
  timeout: 1h
`)
	opts.Environ = []string{"RECONCILER_NOTIFY=perhaps", "RECONCILER_LOG_LEVLE=info"}
	opts.Overrides = map[string]string{"listen": "here", "listne": "x"}
	env := driverEnv(noEnv)
	_, _, err := LoadAndOpen(opts, env)
	require.Equal(t, []string{
		`reconciler.yaml:2:1: databse_url: unknown key; did you mean "database_url"?`,
		`reconciler.yaml:3:14: log.level: must be one of debug, info, warn, error, not 5`,
		`reconciler.yaml:4:16: poll_interval: needs a unit: write "30s", "30m" or "30h" instead of 30`,
		`reconciler.yaml:8:25: targets[0].options.secret_env: the variable HOOK_SECRET is not set`,
		`reconciler.yaml:9:9: targets[1].name: "a" is already the name of targets[0] (reconciler.yaml:6:9)`,
		`reconciler.yaml:11:12: targets[1].options.dir: is missing`,
		`reconciler.yaml:12:9: targets[2].name: "c d" is not a valid name: use 1 to 63 letters, digits, ".", "_" and "-", beginning with a letter or digit, without ".."`,
		`reconciler.yaml:13:11: targets[2].driver: unknown driver "dirr"; did you mean "dir"? The drivers are dir, hook`,
		`reconciler.yaml:14:12: targets[2].timeout: must be from 100ms to 10m, not 1h`,
		`env RECONCILER_LOG_LEVLE: unknown variable; did you mean "RECONCILER_LOG_LEVEL"?`,
		`env RECONCILER_NOTIFY: notify: must be one of auto, on, off, not "perhaps"`,
		`flag --listen: listen: must be "off" or host:port such as "127.0.0.1:7433", not "here"`,
		`flag --listne: listne: unknown key; did you mean "listen"?`,
		`database_url: is missing: set it in reconciler.yaml, or set RECONCILER_DATABASE_URL, such as "postgres://user@host:5432/database"`,
	}, problemLines(t, err, clean))
}

func TestErrorTextIsOneLineForEachProblem(t *testing.T) {
	t.Parallel()
	one := Problem{Path: "a", Text: "is bad"}
	two := Problem{Origin: Origin{Source: SourceFile, Name: "f.yaml", Line: 3, Col: 4}, Path: "b", Text: "is worse"}
	require.EqualError(t, &Error{Problems: []Problem{one}}, "invalid configuration: a: is bad")
	require.EqualError(t, &Error{Problems: []Problem{two, one}},
		"invalid configuration, 2 problems:\n  f.yaml:3:4: b: is worse\n  a: is bad")
}

func TestJSONProblemsHaveTheirPlace(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, want string }{
		"WrongType":  {"{\n\t\"log\": {\"level\": \"é\", \"format\": 5}\n}", `c.json:2:19: log.level: must be one of debug, info, warn, error, not "é"|c.json:2:34: log.format: must be one of text, json, not 5`},
		"UnknownKey": {"{\n  \"notfy\": \"on\"\n}", `c.json:2:3: notfy: unknown key; did you mean "notify"?`},
		"Comma":      {"{\n  \"notify\": \"on\",\n}", `c.json:3:1: not valid JSON: it ends too early, or has a character that does not belong here`},
		"Garbage":    {"{\n  \"notify\": on,\n  \"listen\": \"off\"}", `c.json:2:13: not valid JSON: a character does not belong here`},
		"Empty":      {"", `c.json:1:1: not valid JSON: it ends too early, or has a character that does not belong here`},
		"BigNumber":  {`{"x-a": 1e999}`, `c.json:1:9: a number is too large`},
		"Deep":       {`{"x-a": ` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}", `c.json:1:72: nested more than 64 levels deep`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, clean := setup(t, "")
			opts.Path = writeFile(t, opts.Dir, "c.json", tc.file)
			_, err := Load(opts)
			require.Equal(t, tc.want, strings.Join(problemLines(t, err, clean), "|"))
		})
	}
}

func TestAliasesCannotMultiplyWithoutEnd(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("x-0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n")
	for i := 1; i < 10; i++ {
		prev := strings.Repeat("*a"+string(rune('0'+i-1))+", ", 9) + "*a" + string(rune('0'+i-1))
		b.WriteString("x-" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + prev + "]\n")
	}
	opts, clean := setup(t, b.String())
	_, err := Load(opts)
	require.Equal(t, []string{"reconciler.yaml:5:10: more than 100000 values, aliases counted"}, problemLines(t, err, clean))
}
