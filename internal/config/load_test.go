package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgreconciler/reconciler/internal/guard"

	"github.com/pgreconciler/reconciler/internal/driver"
)

const everyFieldYAML = `
database_url: postgres://app:pw@db:5432/shop
direct_url: postgres://app:pw@direct:5432/shop
listen: 0.0.0.0:9000
listen_names: status.example.org, reconciler.example.org
pprof_listen: 127.0.0.1:6060
notify: "off"
poll_interval: 2s
shutdown_timeout: 45s
memory_limit: 1GiB
log:
  level: debug
  format: json
retention:
  max_age: 48h
  max_rows: 123456
streams:
  listen: 127.0.0.1:8081
  tls_cert_file: /etc/tls/tls.crt
  tls_key_file: /etc/tls/tls.key
targets:
  - name: eu-1
    driver: dir
    options:
      dir: /srv/eu
      count: 3
      ratio: 1.5
      on: true
      list: [a, 1]
      nested: {k: v}
    concurrency: 16
    timeout: 7s
    sync_interval: 20m
    sync_mode: report
    rate: 12.5
    backoff:
      min: 1s
      max: 2m
    guard:
      max_deletes: 50
      max_fraction: 0.5
      window: 30s
`

const everyFieldJSON = `{
	"database_url": "postgres:\/\/app:pw@db:5432\/shop",
	"direct_url": "postgres://app:pw@direct:5432/shop",
	"listen": "0.0.0.0:9000",
	"listen_names": "status.example.org, reconciler.example.org",
	"pprof_listen": "127.0.0.1:6060",
	"notify": "off",
	"poll_interval": "2s",
	"shutdown_timeout": "45s",
	"memory_limit": "1GiB",
	"log": {"level": "debug", "format": "json"},
	"retention": {"max_age": "48h", "max_rows": 123456},
	"streams": {"listen": "127.0.0.1:8081", "tls_cert_file": "/etc/tls/tls.crt", "tls_key_file": "/etc/tls/tls.key"},
	"targets": [{
		"name": "eu-1", "driver": "dir",
		"options": {"nested": {"k": "v"}, "list": ["a", 1], "on": true, "ratio": 1.5, "count": 3, "dir": "/srv/eu"},
		"concurrency": 16, "timeout": "7s", "sync_interval": "20m", "sync_mode": "report", "rate": 12.5,
		"backoff": {"min": "1s", "max": "2m"},
		"guard": {"max_deletes": 50, "max_fraction": 0.5, "window": "30s"}
	}]
}`

func everyField() Config {
	return Config{
		DatabaseURL: NewURL("postgres://app:pw@db:5432/shop"),
		DirectURL:   NewURL("postgres://app:pw@direct:5432/shop"),
		Listen:      "0.0.0.0:9000",
		ListenNames: "status.example.org, reconciler.example.org", PprofListen: "127.0.0.1:6060",
		Notify:          NotifyOff,
		PollInterval:    2 * time.Second,
		ShutdownTimeout: 45 * time.Second,
		MemoryLimit:     1 << 30,
		Log:             Log{Level: LogDebug, Format: LogJSON},
		Retention:       Retention{MaxAge: 48 * time.Hour, MaxRows: 123456},
		Streams:         Streams{Listen: "127.0.0.1:8081", TLSCertFile: "/etc/tls/tls.crt", TLSKeyFile: "/etc/tls/tls.key"},
		Targets: []Target{{
			Name:   "eu-1",
			Driver: "dir",
			Options: driver.Options{
				"dir": "/srv/eu", "count": int64(3), "ratio": 1.5, "on": true,
				"list": []any{"a", int64(1)}, "nested": map[string]any{"k": "v"},
			},
			Concurrency:  16,
			Timeout:      7 * time.Second,
			SyncInterval: 20 * time.Minute,
			SyncMode:     SyncReport,
			Rate:         12.5,
			Backoff:      Backoff{Min: time.Second, Max: 2 * time.Minute},
			Guard:        Guard{MaxDeletes: new(50), MaxFraction: new(0.5), Window: 30 * time.Second},
		}},
	}
}

// requireConfig compares everything but where it came from.
func requireConfig(t *testing.T, want Config, got *Config) {
	t.Helper()
	stripped := *got
	stripped.File, stripped.origins = "", nil
	require.Equal(t, want, stripped)
}

func TestFileSetsEveryField(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"YAML": everyFieldYAML, "JSON": everyFieldJSON} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := loadText(t, text)
			require.NoError(t, err)
			requireConfig(t, everyField(), cfg)
			for _, v := range cfg.Values() {
				require.NotEqual(t, "default", v.Origin, "everyFieldYAML does not set %s", v.Key)
			}
		})
	}
}

func TestJSONFileByNameIsAConfig(t *testing.T) {
	t.Parallel()
	opts, _ := setup(t, "")
	opts.Path = writeFile(t, opts.Dir, "conf.json", everyFieldJSON)
	cfg, err := Load(opts)
	require.NoError(t, err)
	requireConfig(t, everyField(), cfg)
	require.Equal(t, opts.Path, cfg.File)
}

func TestEnvironmentSetsEveryField(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets: [{name: eu-1, driver: hook, options: {gone: 1}}]",
		"RECONCILER_DATABASE_URL=postgres://app:pw@db:5432/shop",
		"RECONCILER_DIRECT_URL=postgres://app:pw@direct:5432/shop",
		"RECONCILER_LISTEN=0.0.0.0:9000",
		"RECONCILER_LISTEN_NAMES=status.example.org, reconciler.example.org",
		"RECONCILER_PPROF_LISTEN=127.0.0.1:6060",
		"RECONCILER_NOTIFY=off",
		"RECONCILER_POLL_INTERVAL=2s",
		"RECONCILER_SHUTDOWN_TIMEOUT=45s",
		"RECONCILER_MEMORY_LIMIT=1GiB",
		"RECONCILER_LOG_LEVEL=debug",
		"RECONCILER_LOG_FORMAT=json",
		"RECONCILER_RETENTION_MAX_AGE=48h",
		"RECONCILER_RETENTION_MAX_ROWS=123456",
		"RECONCILER_STREAMS_LISTEN=127.0.0.1:8081",
		"RECONCILER_STREAMS_TLS_CERT_FILE=/etc/tls/tls.crt",
		"RECONCILER_STREAMS_TLS_KEY_FILE=/etc/tls/tls.key",
		"RECONCILER_TARGETS_EU_1_DRIVER=dir",
		`RECONCILER_TARGETS_EU_1_OPTIONS={"dir": "/tmp", "count": 3, "ratio": 1.5}`,
		"RECONCILER_TARGETS_EU_1_OPTIONS_DIR=/srv/eu",
		"RECONCILER_TARGETS_EU_1_OPTIONS_ON=true",
		`RECONCILER_TARGETS_EU_1_OPTIONS_LIST=["a", 1]`,
		`RECONCILER_TARGETS_EU_1_OPTIONS_NESTED={"k": "v"}`,
		"RECONCILER_TARGETS_EU_1_CONCURRENCY=16",
		"RECONCILER_TARGETS_EU_1_TIMEOUT=7s",
		"RECONCILER_TARGETS_EU_1_SYNC_INTERVAL=20m",
		"RECONCILER_TARGETS_EU_1_SYNC_MODE=report",
		"RECONCILER_TARGETS_EU_1_RATE=12.5",
		"RECONCILER_TARGETS_EU_1_BACKOFF_MIN=1s",
		"RECONCILER_TARGETS_EU_1_BACKOFF_MAX=2m",
		"RECONCILER_TARGETS_EU_1_GUARD_MAX_DELETES=50",
		"RECONCILER_TARGETS_EU_1_GUARD_MAX_FRACTION=0.5",
		"RECONCILER_TARGETS_EU_1_GUARD_WINDOW=30s",
	)
	require.NoError(t, err)
	requireConfig(t, everyField(), cfg)
	for _, v := range cfg.Values() {
		if v.Key != "targets[0].name" {
			require.Regexp(t, "^env RECONCILER_", v.Origin, v.Key)
		}
	}
}

func TestOneVariableHoldsAllTargets(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets: [{name: gone, driver: nonsense}]",
		`RECONCILER_TARGETS=[{"name": "a", "driver": "dir"}, {name: b, driver: hook}]`,
		"RECONCILER_TARGETS_B_CONCURRENCY=3")
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, []string{cfg.Targets[0].Name, cfg.Targets[1].Name})
	require.Len(t, cfg.Targets, 2)
	require.Equal(t, 3, cfg.Targets[1].Concurrency)
	require.Equal(t, 8, cfg.Targets[0].Concurrency)
	require.Equal(t, "env RECONCILER_TARGETS:1:40", cfg.Origin("targets[1].name").at(position{1, 40}).String())
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets:\n- {name: a, driver: dir}\n")
	require.NoError(t, err)
	requireConfig(t, Config{
		Listen:          "127.0.0.1:7433",
		Notify:          NotifyAuto,
		PollInterval:    200 * time.Millisecond,
		ShutdownTimeout: 20 * time.Second,
		MemoryLimit:     192 << 20,
		Log:             Log{Level: LogInfo, Format: LogText},
		Retention:       Retention{MaxAge: 24 * time.Hour, MaxRows: 10_000_000},
		Targets: []Target{{
			Name: "a", Driver: "dir", Options: driver.Options{},
			Concurrency: 8, Timeout: 5 * time.Second, SyncInterval: 10 * time.Minute, SyncMode: SyncRepair,
			Backoff: Backoff{Min: 500 * time.Millisecond, Max: 5 * time.Minute},
			Guard:   Guard{Window: time.Minute},
		}},
	}, cfg)
	for _, v := range cfg.Values() {
		if v.Key != "targets[0].name" && v.Key != "targets[0].driver" {
			require.Equal(t, "default", v.Origin, v.Key)
		}
	}
}

func TestDirectURLIsDatabaseURLUnlessGiven(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "database_url: postgres://u@h/db")
	require.NoError(t, err)
	require.Equal(t, NewURL("postgres://u@h/db"), cfg.DirectURL)
	require.Equal(t, "default", cfg.Origin("direct_url").String())
}

func TestOffSwitchesOff(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "listen: off\npprof_listen: 'off'\ntargets: [{name: a, driver: dir, sync_interval: off}]")
	require.NoError(t, err)
	require.Empty(t, cfg.Listen)
	require.Empty(t, cfg.PprofListen)
	require.Zero(t, cfg.Targets[0].SyncInterval)
}

func TestFlagsWinOverEnvironmentOverFileOverDefault(t *testing.T) {
	t.Parallel()
	opts, clean := setup(t, "log: {level: debug, format: json}\nlisten: 127.0.0.1:1\n")
	opts.Environ = []string{"RECONCILER_LOG_LEVEL=warn", "RECONCILER_LISTEN=127.0.0.1:2"}
	opts.Overrides = map[string]string{"log.level": "error"}
	cfg, err := Load(opts)
	require.NoError(t, err)
	got := map[string]string{}
	for _, v := range cfg.Values() {
		got[v.Key] = v.Value + " from " + clean(v.Origin)
	}
	require.Equal(t, map[string]string{
		"database_url":          " from default",
		"direct_url":            " from default",
		"listen":                "127.0.0.1:2 from env RECONCILER_LISTEN",
		"listen_names":          " from default",
		"pprof_listen":          "off from default",
		"notify":                "auto from default",
		"poll_interval":         "200ms from default",
		"shutdown_timeout":      "20s from default",
		"memory_limit":          "192MiB from default",
		"log.level":             "error from flag --log-level",
		"log.format":            "json from reconciler.yaml:1:29",
		"retention.max_age":     "24h from default",
		"retention.max_rows":    "10000000 from default",
		"streams.listen":        "off from default",
		"streams.tls_cert_file": " from default",
		"streams.tls_key_file":  " from default",
	}, got)
}

func TestTargetByName(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets: [{name: a, driver: dir}, {name: b, driver: hook}]")
	require.NoError(t, err)
	b, ok := cfg.Target("b")
	require.True(t, ok)
	require.Equal(t, "hook", b.Driver)
	_, ok = cfg.Target("c")
	require.False(t, ok)
}

func TestGuardKnowsWhatWasSet(t *testing.T) {
	t.Parallel()
	cfg, err := loadText(t, "targets:\n- {name: a, driver: dir}\n- {name: b, driver: dir, guard: {max_deletes: 0, max_fraction: 0.2}}\n"+
		"- {name: c, driver: dir, guard: {max_deletes: null}}\n- {name: d, driver: dir, guard: }")
	require.NoError(t, err)
	unset := guard.Limits{MaxDeletes: -1, MaxFraction: 0.2, Floor: 10, Window: time.Minute}
	require.Equal(t, unset, cfg.Targets[0].Guard.Limits())
	require.Equal(t, guard.Limits{MaxDeletes: 0, MaxFraction: 0.2, Floor: 1, Window: time.Minute}, cfg.Targets[1].Guard.Limits())
	require.Equal(t, unset, cfg.Targets[2].Guard.Limits())
	require.Equal(t, unset, cfg.Targets[3].Guard.Limits())
}

func TestGuardHoldsWhatExceedsIt(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		guard            Guard
		deletes, objects int
		held             bool
	}{
		"DefaultPassesTenOfTen":            {Guard{}, 10, 10, false},
		"DefaultHoldsElevenOfTwelve":       {Guard{}, 11, 12, true},
		"DefaultPassesExactlyAFifth":       {Guard{}, 20, 100, false},
		"DefaultHoldsMoreThanAFifth":       {Guard{}, 21, 100, true},
		"ExplicitFractionPassesALoneOne":   {Guard{MaxFraction: new(0.2)}, 1, 1, false},
		"ExplicitFractionHoldsTwoOfFour":   {Guard{MaxFraction: new(0.2)}, 2, 4, true},
		"ExplicitZeroHoldsTwo":             {Guard{MaxFraction: new(0.0)}, 2, 1000, true},
		"ExplicitOneHoldsNothing":          {Guard{MaxFraction: new(1.0)}, 1000, 1000, false},
		"ExplicitOneHoldsNoRepetition":     {Guard{MaxFraction: new(1.0)}, 1001, 1000, false},
		"ExplicitOneLeavesTheCountActive":  {Guard{MaxFraction: new(1.0), MaxDeletes: new(5)}, 6, 1000, true},
		"CountPassesAtItsLimit":            {Guard{MaxDeletes: new(5)}, 5, 1000, false},
		"CountHoldsAboveItsLimit":          {Guard{MaxDeletes: new(5)}, 6, 1000, true},
		"CountOfZeroHoldsALoneOne":         {Guard{MaxDeletes: new(0)}, 1, 1000, true},
		"CountLeavesDefaultFractionActive": {Guard{MaxDeletes: new(500)}, 300, 1000, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.held, int64(tc.deletes) > tc.guard.Limits().Limit(int64(tc.objects)))
		})
	}
}
