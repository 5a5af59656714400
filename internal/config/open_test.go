package config

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const openYAML = `database_url: postgres://h/db
targets:
  - name: a
    driver: dir
    options: {dir: /srv}
  - name: b
    driver: hook
    options:
      secret_env: HOOK_SECRET
`

func withSecret(string) string { return "s3cret" }

func TestOpenTargetsReturnsADriverForEachTarget(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, openYAML)
	require.NoError(t, err)
	reg, closed := fakeRegistry()
	drivers, err := cfg.OpenTargets(reg, driverEnv(withSecret))
	require.NoError(t, err)
	require.Equal(t, map[string]driver.Driver{"a": fakeDriver{closed}, "b": fakeDriver{closed}}, drivers)
	require.Zero(t, *closed)
}

func TestOpenTargetsClosesWhatItOpenedWhenOneFails(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, openYAML)
	cfg, err := Load(opts)
	require.NoError(t, err, "a missing secret is no problem for commands that only talk to the database")
	require.NoError(t, cfg.ValidateDatabase())
	reg, closed := fakeRegistry()
	drivers, err := cfg.OpenTargets(reg, driverEnv(noEnv))
	require.Nil(t, drivers)
	require.Equal(t, []string{
		"reconciler.yaml:9:19: targets[1].options.secret_env: the variable HOOK_SECRET is not set",
	}, problemLines(t, err, clean))
	require.Equal(t, 1, *closed)
}

func TestLoadAndOpenClosesEveryDriverWhenAnythingElseIsWrong(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "notify: x\ntargets: [{name: a, driver: dir, options: {dir: x}}, {name: a, driver: dir, options: {dir: y}}, {name: -, driver: dir, options: {dir: z}}, 5, {name: d, driver: dir, options: []}]")
	reg, closed := fakeRegistry()
	opts.Registry = reg
	_, drivers, err := LoadAndOpen(opts, driverEnv(noEnv))
	require.Nil(t, drivers)
	require.Equal(t, []string{
		`reconciler.yaml:1:9: notify: must be one of auto, on, off, not "x"`,
		`reconciler.yaml:2:61: targets[1].name: "a" is already the name of targets[0] (reconciler.yaml:2:18)`,
		`reconciler.yaml:2:104: targets[2].name: "-" is not a valid name: use 1 to 63 letters, digits, ".", "_" and "-", beginning with a letter or digit, without ".."`,
		`reconciler.yaml:2:140: targets[3]: must be a mapping with the keys name, driver and options, not a number`,
		`reconciler.yaml:2:175: targets[4].options: must be a mapping of the driver's options, not a list`,
		`database_url: is missing: set it in reconciler.yaml, or set RECONCILER_DATABASE_URL, such as "postgres://user@host:5432/database"`,
	}, problemLines(t, err, clean))
	require.Equal(t, 3, *closed)
}

func TestLoadAndOpenReturnsConfigAndDrivers(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, openYAML)
	cfg, drivers, err := LoadAndOpen(opts, driverEnv(withSecret))
	require.NoError(t, err)
	require.Len(t, drivers, 2)
	require.Len(t, cfg.Targets, 2)
}

func TestProblemsOfDriversPointAtWhatTheyConcern(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, openYAML)
	cfg, err := Load(opts)
	require.NoError(t, err)
	fails := func(err error) driver.Registry {
		open := func(string, driver.Options, driver.Env) (driver.Driver, error) { return nil, err }
		return driver.Registry{{Name: "hook", Open: open}}
	}
	const unknown = `reconciler.yaml:4:13: targets[0].driver: unknown driver "dir"; choose one of hook`
	for name, tc := range map[string]struct {
		err  error
		want []string
	}{
		"PlainError": {errors.New("no"), []string{unknown, "reconciler.yaml:9:7: targets[1].options: no"}},
		"NoProblems": {driver.Problems{}, []string{unknown, "reconciler.yaml:9:7: targets[1].options: "}},
		"Several": {
			driver.Problems{{Path: "options.url", Text: "is missing"}, {Path: "options.secret_env", Text: "is odd"}, {Path: "timeout", Text: "is short"}},
			[]string{
				unknown,
				"reconciler.yaml:6:5: targets[1].timeout: is short",
				"reconciler.yaml:9:7: targets[1].options.url: is missing",
				"reconciler.yaml:9:19: targets[1].options.secret_env: is odd",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := cfg.OpenTargets(fails(tc.err), driverEnv(noEnv))
			require.Equal(t, tc.want, problemLines(t, err, clean))
		})
	}
}

func TestValidateDatabaseNamesEveryWayToMendIt(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "")
	require.NoError(t, err)
	require.EqualError(t, cfg.ValidateDatabase(), "invalid configuration: database_url: is missing: "+
		`set it in a config file (-c FILE, or ./reconciler.yaml), or set RECONCILER_DATABASE_URL, such as "postgres://user@host:5432/database"`)
}

func TestUnknownDriversAreLeftToOthersWithoutRegistry(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, "targets: [{name: a, driver: whatever}]")
	opts.Registry = nil
	cfg, err := Load(opts)
	require.NoError(t, err)
	require.Equal(t, "whatever", cfg.Targets[0].Driver)
}
