package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

func driverEnv(getenv func(string) string) driver.Env { return driver.Env{Getenv: getenv} }

func TestVariablesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets: [{name: a, driver: hook, options: {secret_env: RECONCILER_HOOK, deep: [{x_env: RECONCILER_DEEP}], many_env: [RECONCILER_B]}}]",
		"PATH=/bin",
		"DATABASE_URL=postgres://elsewhere",
		"RECONCILER_HOOK=s", "RECONCILER_DEEP=s", "RECONCILER_B=s",
		"RECONCILER_TEST_POSTGRES=15",
		"RECONCILER_UNKNOWN=", // not set, as far as compose files are concerned
		"RECONCILER_LISTEN=",
		// What Kubernetes sets beside services named reconciler and reconciler-metrics.
		"RECONCILER_SERVICE_HOST=10.0.0.1", "RECONCILER_SERVICE_PORT=80", "RECONCILER_SERVICE_PORT_HTTP=80",
		"RECONCILER_PORT=tcp://10.0.0.1:80", "RECONCILER_PORT_80_TCP=tcp://10.0.0.1:80", "RECONCILER_PORT_80_TCP_PROTO=tcp",
		"RECONCILER_PORT_80_TCP_PORT=80", "RECONCILER_PORT_80_TCP_ADDR=10.0.0.1",
		"RECONCILER_METRICS_SERVICE_HOST=10.0.0.1", "RECONCILER_METRICS_PORT_80_TCP=tcp://10.0.0.1:80",
	)
	require.NoError(t, err)
	require.True(t, cfg.DatabaseURL.IsZero())
	require.Equal(t, "127.0.0.1:7433", cfg.Listen)
}

func TestBadVariablesAreReported(t *testing.T) {
	t.Parallel()
	const twoTargets = "targets: [{name: x, driver: dir}, {name: x-options, driver: dir}]"
	for name, tc := range map[string]struct{ file, variable, want string }{
		"Misspelt":        {"", "RECONCILER_DATABSE_URL=x", `env RECONCILER_DATABSE_URL: unknown variable; did you mean "RECONCILER_DATABASE_URL"?`},
		"OfAGroup":        {"", "RECONCILER_RETENTION=x", `env RECONCILER_RETENTION: unknown variable; the variables are listed in docs/configuration.md`},
		"OfATarget":       {twoTargets, "RECONCILER_TARGETS_X_TIMOUT=1s", `env RECONCILER_TARGETS_X_TIMOUT: unknown variable; did you mean "RECONCILER_TARGETS_X_TIMEOUT"?`},
		"OfNoTarget":      {twoTargets, "RECONCILER_TARGETS_Y_TIMEOUT=1s", `env RECONCILER_TARGETS_Y_TIMEOUT: unknown variable; did you mean "RECONCILER_TARGETS_X_TIMEOUT"?`},
		"NameOfATarget":   {twoTargets, "RECONCILER_TARGETS_X_NAME=y", `env RECONCILER_TARGETS_X_NAME: unknown variable; did you mean "RECONCILER_TARGETS_X_RATE"?`},
		"WrongValue":      {twoTargets, "RECONCILER_TARGETS_X_TIMEOUT=1", `env RECONCILER_TARGETS_X_TIMEOUT: targets[0].timeout: needs a unit: write "1s", "1m" or "1h" instead of 1`},
		"WrongNumber":     {twoTargets, "RECONCILER_TARGETS_X_RATE=NaN", `env RECONCILER_TARGETS_X_RATE: targets[0].rate: must be a number, not "NaN"`},
		"Ambiguous":       {twoTargets, "RECONCILER_TARGETS_X_OPTIONS_TIMEOUT=1s", `env RECONCILER_TARGETS_X_OPTIONS_TIMEOUT: can mean options.timeout of target "x" or timeout of target "x-options"; set it in the config file instead`},
		"OptionsNoObject": {twoTargets, "RECONCILER_TARGETS_X_OPTIONS=[1]", `env RECONCILER_TARGETS_X_OPTIONS: targets[0].options: must be a JSON mapping such as {"dir": "/srv/targets"}`},
		"TargetsNoYAML":   {"", "RECONCILER_TARGETS=[", `env RECONCILER_TARGETS:1:1: not valid YAML: sequence end token ']' not found`},
		"TargetsNoList":   {"", "RECONCILER_TARGETS=a", `env RECONCILER_TARGETS: targets: must be a list with one mapping for each target (- name: ...), not a string`},
		"F136_ParsedURL":  {"", "RECONCILER_DATABASE_URL=postgres://app:p@ss/word#1@host/app", `env RECONCILER_DATABASE_URL: database_url: holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23, or keep the password in a file: postgres://user@host:5432/database?passfile=PATH`},
		"F136_Variable":   {"", "RECONCILER_DIRECT_URL=postgres://app:${PASSWORD}@host/app", "env RECONCILER_DIRECT_URL: direct_url: holds a variable that was not expanded, ${NAME} or $(NAME): write its value in its place, for reconciler expands no variables, or write $ as %24 if it belongs to the password"},
		"URL":             {"", "RECONCILER_DATABASE_URL=postgres://u:hun/ter2@h", `env RECONCILER_DATABASE_URL: database_url: holds an @, /, ? or # that is not percent-encoded, so that the password cannot be told from the host: write @ as %40, / as %2F, ? as %3F and # as %23, or keep the password in a file: postgres://user@host:5432/database?passfile=PATH`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, clean := setup(t, tc.file)
			opts.Environ = []string{tc.variable}
			_, err := Load(opts)
			require.Equal(t, []string{tc.want}, problemLines(t, err, clean))
		})
	}
}

func TestAmbiguityBetweenTargetsOfOneNameIsReportedOnce(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "targets: [{name: x, driver: dir}, {name: x, driver: dir}]")
	opts.Environ = []string{"RECONCILER_TARGETS_X_TIMEOUT=1s"}
	_, err := Load(opts)
	require.Equal(t, []string{
		`reconciler.yaml:1:42: targets[1].name: "x" is already the name of targets[0] (reconciler.yaml:1:18)`,
	}, problemLines(t, err, clean))
}

func TestOptionVariableIsJSONOrText(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]any{
		"5":             int64(5),
		"5.5":           5.5,
		"true":          true,
		`"5"`:           "5",
		`["a", {}]`:     []any{"a", map[string]any{}},
		"/srv/a b":      "/srv/a b",
		"{not json":     "{not json",
		"1e999":         "1e999",
		"0123":          "0123",
		"postgres://h/": "postgres://h/",
	} {
		cfg, err := loadText(t, "targets: [{name: x, driver: dir}]", "RECONCILER_TARGETS_X_OPTIONS_DIR="+value)
		require.NoError(t, err)
		require.Equal(t, driver.Options{"dir": want}, cfg.Targets[0].Options)
	}
	cfg, err := loadText(t, "targets: [{name: x, driver: dir, options: {dir: a}}]", "RECONCILER_TARGETS_X_OPTIONS_DIR=null")
	require.NoError(t, err)
	require.Equal(t, driver.Options{"dir": "a"}, cfg.Targets[0].Options)
}
